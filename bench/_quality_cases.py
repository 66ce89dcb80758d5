"""The models and clusters of plan_quality, and the StableHLO of each model, exported once and kept in out/bench.

Owns names, sizes and options of the cases, and what a case of joint_search is. Imports neither jax nor MLIR: exporting
runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bench._common import CACHE, ROOT, note, run

CLUSTERS = ("p3.16xlarge:1", "p3.16xlarge:8", "dgx-a100:2", "dgx-h100:16")
FOLDER = CACHE / "quality"


@dataclass(frozen=True, slots=True)
class Model:
    """A preset of examples/models. `batch` 0 is the preset's own; `options` are further options of examples.export."""

    module: str
    preset: str
    batch: int = 0
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Short and unique: "gpt-1.3b"."""
        return f"{self.module}-{self.preset}{f'-b{self.batch}' if self.batch else ''}"

    @property
    def sizes(self) -> dict[str, int]:
        """What of the preset's sizes is another one."""
        given = (option.partition("=") for option in self.options if "=" in option)
        return {name: int(value) for name, _, value in given if value.isdigit()}


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a cluster."""

    model: Model
    cluster: str

    @property
    def name(self) -> str:
        """Short and unique."""
        return f"{self.model.name}@{self.cluster}"


_LOOP = ("--scan", "--remat")
# Repeated layers as one loop: the plan is the same, and XLA compiles one layer instead of all. The quick ones first.
STANDARD: tuple[Model, ...] = (
    Model("mlp", "wide"),
    Model("dlrm", "mlperf"),
    Model("lstm", "250m", options=_LOOP),
    Model("gpt", "1.3b", options=_LOOP),
    # Their published batches do not fit without micro-batches, whoever plans; these do on some of the clusters.
    Model("gpt", "175b", batch=128, options=_LOOP),
    Model("llama", "llama2-7b", batch=128, options=_LOOP),
    Model("bert", "large", options=_LOOP),
    Model("moe", "1.3b", options=_LOOP),
    Model("vit", "l16", options=_LOOP),
    Model("clip", "l14", options=_LOOP),
    Model("t5", "3b", options=_LOOP),
    Model("wide_resnet", "1b", options=("--scan",)),
    Model("convnet", "resnet50"),
    Model("unet", "adm-64", options=("--remat",)),
)
FULL: tuple[Model, ...] = (
    *STANDARD,
    Model("mlp", "deep"),
    Model("wide_resnet", "250m", options=("--scan",)),
    Model("wide_resnet", "4b", options=("--scan",)),
    Model("wide_resnet", "13b", options=("--scan",)),
    Model("moe", "380m", options=_LOOP),
    Model("moe", "10b", options=_LOOP),
    Model("moe", "70b", options=_LOOP),
    Model("gpt", "350m", options=_LOOP),
    Model("gpt", "6.7b", options=_LOOP),
    Model("gpt", "39b", options=_LOOP),
    Model("llama", "llama2-70b", options=_LOOP),
    Model("unet", "adm-256", options=("--remat",)),
    Model("lstm", "big", options=_LOOP),
    Model("vit", "h14", options=_LOOP),
)
QUICK: tuple[Model, ...] = (Model("mlp", "tiny"), Model("dlrm", "tiny"))


def module(model: Model, suffix: str = ".mlir") -> Path:
    """Path of the StableHLO of a model, exported unless that was done before from the same sources.

    Args:
      suffix: ".mlir" for text, ".mlirbc" for bytecode.

    Raises:
      BenchError: the example cannot be exported.
    """
    path = FOLDER / f"{model.name}-{_digest(model)}{suffix}"
    if not path.exists():
        note(f"exporting {model.name}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}{suffix}")
        batch = ["--batch", str(model.batch)] if model.batch else []
        command = [sys.executable, "-m", "examples.export", model.module, "--preset", model.preset, *batch]
        run([*command, *model.options, "-o", draft], env={"JAX_PLATFORMS": "cpu"})
        draft.rename(path)
    return path


def _digest(model: Model) -> str:
    """Of what the text depends on: the model's sources and options, besides jax itself."""
    digest = hashlib.sha256(sys.version.encode() + repr(model).encode())
    names = ("stacking", "attention", model.module)
    for path in (ROOT / "examples/export.py", *(ROOT / f"examples/models/{name}.py" for name in names)):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()[:8]


def digest_of(*folders: str) -> str:
    """Digest of the sources under some folders of the repository: Python, YAML and text."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml", ".txtpb"):
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
