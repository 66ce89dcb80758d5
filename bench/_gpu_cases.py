"""Steps that run on one GPU: presets of the examples, their batches, and how they are planned for it.

Owns the cases of `bench.gpu`. Needs no GPU.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

import rhino


@dataclass(frozen=True, slots=True)
class Case:
    """A preset of examples/models with a batch that one GPU of 80 GB holds, and fields of its configuration changed.

    `limit` is the memory that its plan may take, by default the GPU's; within less, layers are computed again. `remat`
    is as of `rhino.parallelize`: what was recorded before loops over layers stacked only what is not fused keeps all.
    """

    name: str
    module: str
    preset: str
    batch: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    limit: str | None = None
    microbatches: int = 1
    seconds: float = 2.0
    remat: str = "auto"


_LARGE = (
    Case("gpt-1.3b", "gpt", "1.3b", 4, {"layers": 8}),
    Case("gpt-1.3b-hosted", "gpt", "1.3b", 4, {"layers": 8, "scan": True}, limit="8GiB"),
    Case("gpt-350m", "gpt", "350m", 16, {"scan": True, "remat": True}),
    Case("llama2-7b", "llama", "llama2-7b", 2, {"layers": 2, "attention": "cudnn"}),
    Case("llama3-8b", "llama", "llama3-8b", 1, {"layers": 2, "attention": "cudnn", "fused": True}),
    Case("bert-large", "bert", "large", 32),
    Case("t5-base", "t5", "base", 16, {"scan": True}, remat="keep"),
    Case("vit-l16", "vit", "l16", 64),
    Case("clip-b16", "clip", "b16", 128, {"scan": True}, remat="keep"),
    Case("resnet50", "convnet", "resnet50", 256),
    Case("wide-resnet", "wide_resnet", "250m", 32),
    Case("unet-64", "unet", "adm-64", 32),
    Case("moe-380m", "moe", "380m", 16),
    Case("dlrm-kaggle", "dlrm", "kaggle", 16384),
    Case("lstm-250m", "lstm", "250m", 128, remat="keep"),
    Case("mlp-wide", "mlp", "wide", 1024),
    Case("mlp-deep", "mlp", "deep", 4096),
    # What is not as written: micro-batches in a loop, layers computed again.
    Case("gpt-1.3b-in-4", "gpt", "1.3b", 16, {"layers": 8}, microbatches=4),
    Case("gpt-1.3b-again", "gpt", "1.3b", 8, {"layers": 8}, limit="14GiB"),
    Case("t5-base-fused", "t5", "base", 16, {"scan": True}),
    Case("clip-b16-fused", "clip", "b16", 128, {"scan": True}),
    Case("lstm-250m-fused", "lstm", "250m", 128),
)
# What one of 128 devices has of a batch: kernels of microseconds.
_SMALL = {
    "resnet50": 2, "bert-large": 2, "vit-l16": 2, "clip-b16": 4, "t5-base": 1, "gpt-350m": 1, "wide-resnet": 1,
    "dlrm-kaggle": 128, "lstm-250m": 4, "mlp-wide": 8, "mlp-deep": 32, "unet-64": 2,
}  # fmt: skip
CASES: tuple[Case, ...] = (
    *_LARGE,
    *(dataclasses.replace(it, name=f"{it.name}-b{n}", batch=n) for it in _LARGE if (n := _SMALL.get(it.name))),
)
QUICK: tuple[Case, ...] = (
    Case("mlp-tiny", "mlp", "tiny", 16, seconds=0.2),
    Case("gpt-tiny", "gpt", "tiny", 8, seconds=0.2),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A case's step, planned for one device."""

    init: Any
    step: Any
    shapes: Any
    batch: Any
    plan: rhino.Plan


def planned(case: Case, cluster: rhino.Cluster) -> Planned:
    """The case's plan for a cluster of one device: one program."""
    model = importlib.import_module(f"examples.models.{case.module}")
    config = dataclasses.replace(model.PRESETS[case.preset], **case.changes)
    init, train_step = model.make_train_step(config)
    batch = model.example_batch(config, case.batch)
    step = rhino.parallelize(
        train_step, cluster=cluster, donate_argnums=(0,), microbatches=case.microbatches, memory_limit=case.limit,
        remat=case.remat,
    )  # fmt: skip
    shapes = jax.eval_shape(init, jax.random.key(0))
    return Planned(init, step, shapes, batch, step.plan(shapes, batch))
