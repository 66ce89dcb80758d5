"""Which benches there are, and the parts into which each is cut, so that a long one can be interrupted without loss.

Owns the names of the parts, the commands that measure them, and how texts call their cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench import _kernel_cases as kernels
from bench import (
    by_hand,
    cost_fidelity,
    cpu_hosts,
    joint_search,
    overlap,
    pipeline_multihost,
    resharding,
    scanned,
    search_time,
    stages,
    without,
)
from bench._common import Named
from bench._inputs import GPT
from bench._quality_cases import CLUSTERS, STANDARD, Case, Model
from bench.report import console

# Nobody reads these of a record, and they are most of its bytes.
_UNREAD = frozenset({"trials", "collectives", "samples", "losses", "alternatives", "why"})
_DEVICES = {
    "cpu": "CPU devices", "p3.16xlarge": "V100", "dgx-a100": "A100", "dgx-h100": "H100"
}  # fmt: skip
_MODELS = {
    "mlp-wide": "dense layers of 16,384", "dlrm-mlperf": "DLRM (MLPerf)", "lstm-250m": "LSTM 250 M",
    "gpt-10m": "GPT 10 M", "gpt-1.3b": "GPT 1.3 B", "gpt-175b": "GPT 175 B", "gpt-39b": "GPT 39 B",
    "llama-llama2-7b": "Llama 2 7 B", "llama-llama2-70b": "Llama 2 70 B", "bert-large": "BERT large",
    "moe-1.3b": "mixture of experts 1.3 B",
    "moe-70b": "mixture of experts 70 B", "vit-l16": "ViT-L/16", "clip-l14": "CLIP ViT-L/14", "t5-3b": "T5 3 B",
    "wide_resnet-1b": "Wide-ResNet 1 B", "wide_resnet-13b": "Wide-ResNet 13 B", "convnet-resnet50": "ResNet-50",
    "unet-adm-64": "U-Net (ADM, 64x64)", "t5-large": "T5 large", "two_tower-wide": "two towers",
    "gpt": "GPT", "unet": "U-Net", "gpt-6.7b": "GPT 6.7 B",
}  # fmt: skip
# What bench.without leaves out, in words.
_LEFT_OUT = {
    "local-sums": "no local sums", "recomputation": "no recomputation but its own",
    "state-apart": "optimizer state as its parameter",
    "distributed-optimizer": "optimizer state whole on every replica",
    "offload": "nothing on the hosts, and memory for that",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """What one process measures: its name among the parts of a bench, what texts call it, and the bench's options."""

    name: str
    label: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench, its parts in the order they are measured, its module, and the keys of its results that are dropped."""

    name: str
    parts: tuple[Part, ...]
    module: str
    unread: frozenset[str] = _UNREAD

    def command(self, part: Part) -> tuple[str, ...]:
        """What measures a part, from `python` on; it prints the record."""
        return ("python", "-m", self.module, *part.options, "--json", "-")


def devices(cluster: str) -> str:
    """A cluster in words: `128 H100`."""
    if cluster == without.ETHERNET:
        return "16 V100, one a host"
    preset, _, hosts = cluster.partition(":")
    return f"{8 * int(hosts or 1)} {_DEVICES.get(preset, preset)}"


def model(made: Model) -> str:
    """A model in words."""
    name = _MODELS.get(f"{made.module}-{made.preset}", f"{made.module} {made.preset}")
    return f"{name}, batch {made.batch:,}" if made.batch else name


def gpt(made: GPT) -> str:
    """A GPT in words."""
    shape = f"GPT {made.preset[:-1]} {made.preset[-1].upper()}"
    if made.scan:
        return f"{shape}, layers as one loop"
    return f"{shape} shape, {made.layers} layers" if made.layers else shape


def _named(made: GPT | Model) -> str:
    return gpt(made) if isinstance(made, GPT) else model(made)


def _planned(case: search_time.Case) -> str:
    more = "" if case.model.remat else ", no `jax.checkpoint`"
    more += ("", f", {case.level}")[case.level != "O1"]
    more += f", {case.memory_gib:,} GiB of memory each" if case.memory_gib else ""
    return f"{gpt(case.model)}, {devices(case.cluster)}{more}"


def _left_out(case: without.Case) -> str:
    plain = ", no `jax.checkpoint`" if case.plain else ""
    sizes = "".join(f", {name} {size:,}" for name, size in case.model.sizes.items())
    return f"{model(case.model)}{sizes}{plain}, {devices(case.cluster)}, {_LEFT_OUT[case.part]}"


def _kernel(case: kernels.Case) -> str:
    stages = f", {case.stages} stages" if case.stages > 1 else ""
    forced = f", {case.pins} layout forced" if case.pins else ""
    long = ", 131,072 tokens" if "131072" in case.model.options else ""
    bytecode = ", from bytecode" if case.suffix != ".mlir" else ""
    return f"{model(case.model)}, {devices(case.cluster)}{stages}{forced}{long}{bytecode}"


def _cut(case: stages.Case) -> str:
    more = "".join(f", {value} {key}" for key, value in case.settings)
    name = _MODELS.get(f"{case.model}-{case.preset}", f"{case.model} {case.preset}".replace("_", " "))
    return f"{name}{more}, {case.stages} stages"


def _parts(cases: Sequence[Named], labels: Sequence[str], *options: str) -> tuple[Part, ...]:
    return tuple(
        Part(case.name, label, ("--only", case.name, *options)) for case, label in zip(cases, labels, strict=True)
    )


def quality_cases() -> tuple[Case, ...]:
    """Every model on every cluster, a model's cases together."""
    return tuple(Case(one, cluster) for one in STANDARD for cluster in CLUSTERS)


def benches() -> tuple[Bench, ...]:
    """All of them, the quick ones first."""

    def bench(name: str, *parts: Part) -> Bench:
        return Bench(name, parts, f"bench.{name}")

    def placed(case: Case) -> str:
        return f"{model(case.model)}, {devices(case.cluster)}"

    quality, joint = quality_cases(), joint_search.CASES
    return (
        bench("startup", Part("all", "start-up")),
        bench("search_time", *_parts(search_time.CASES, [_planned(c) for c in search_time.CASES])),
        bench(
            "cost_fidelity",
            *_parts(cost_fidelity.CASES, [f"{_named(c.model)}, {devices(c.cluster)}" for c in cost_fidelity.CASES]),
        ),
        bench("overlap", *_parts(overlap.CASES, [placed(c) for c in overlap.CASES])),
        bench("train_cpu", Part("all", "GPT 10 M")),
        bench("stages", *_parts(stages.CASES, [_cut(c) for c in stages.CASES])),
        bench(
            "without",
            *_parts(without.CASES, [_left_out(c) for c in without.CASES]),
        ),
        bench("scanned", *_parts(scanned.MODELS, [model(m) for m in scanned.MODELS])),
        bench("kernels", *_parts(kernels.CASES, [_kernel(c) for c in kernels.CASES])),
        bench("pipeline", *(Part(name, name, ("--only", name)) for name in ("overhead", "simulation"))),
        Bench(
            "published_runs",
            (Part("all", "published training runs"),),
            "bench.published_runs",
            frozenset({"parts", "notes", "cpu_s", "fused_attention", "precision", "predicted_s", "measured_s"}),
        ),
        bench("device_model", Part("steps", "steps on a GPU", ("--only", "steps"))),
        bench("cpu_mesh", Part("all", "four models")),
        bench(
            "cpu_hosts",
            *(Part(str(mbits), f"links of {mbits:,} Mbit/s", ("--only", f"@{mbits}")) for mbits in cpu_hosts.MBITS),
        ),
        bench("resharding", *_parts(resharding.CASES, [c.name for c in resharding.CASES])),
        bench(
            "pipeline_multihost",
            *_parts(pipeline_multihost.MODELS, [_MODELS[m.name] for m in pipeline_multihost.MODELS]),
        ),
        bench("joint_search", *_parts(joint, [placed(c) for c in joint], "--compile")),
        Bench(
            "by_hand",
            _parts(by_hand.CASES, [placed(c) for c in by_hand.CASES], "--minutes", "10"),
            "bench.by_hand",
            _UNREAD | {"wishes"},
        ),
        bench("plan_quality", *_parts(quality, [placed(c) for c in quality])),
        bench("timeline", *_parts(quality, [placed(c) for c in quality])),
        Bench(
            "console",
            tuple(Part(page, page, (page,)) for page in console.slow_pages()),
            "bench.report.console",
            frozenset(),
        ),
    )
