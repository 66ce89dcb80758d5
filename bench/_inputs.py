"""The modules that benchmarks read: GPT training steps as StableHLO text, made once and kept in out/bench.

Owns names and contents of those files. The tracing runs in a process of its own (`python -m bench._inputs`), because
the benchmarks themselves must stay small; see _common.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bench._common import CACHE, ROOT, note, run

# What the text of a module depends on, besides jax itself.
_SOURCES = (
    "examples/export.py",
    "examples/models/gpt.py",
    "examples/models/attention.py",
    "examples/models/stacking.py",
    "bench/_inputs.py",
)


@dataclass(frozen=True, slots=True)
class GPT:
    """One GPT training step: a preset of examples/models/gpt.py, with another number of layers if `layers` is given."""

    preset: str
    batch: int
    layers: int = 0
    seq: int = 0
    remat: bool = True
    scan: bool = False

    @property
    def name(self) -> str:
        """Short and unique among the inputs."""
        layers = f"-{self.layers}l" if self.layers else ""
        seq = f"-s{self.seq}" if self.seq else ""
        flags = f"{'-remat' if self.remat else ''}{'-scan' if self.scan else ''}"
        return f"gpt-{self.preset}{layers}-b{self.batch}{seq}{flags}"


def module(model: GPT) -> Path:
    """Path of the StableHLO text of `model`, exporting it unless that was done before from the same sources.

    Raises:
      BenchError: the example cannot be exported.
    """
    path = CACHE / f"{model.name}-{_digest()}.mlir"
    if not path.exists():
        note(f"exporting {model.name}")
        CACHE.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.mlir")
        options = ["--preset", model.preset, "--batch", model.batch, "--layers", model.layers, "--seq", model.seq]
        flags = [f"--{name}" for name in ("remat", "scan") if getattr(model, name)]
        run([sys.executable, "-m", "bench._inputs", *map(str, options), *flags, "-o", draft])
        draft.rename(path)
    return path


def _digest() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in _SOURCES:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:8]


def count_lines(path: Path) -> int:
    """Lines of a module's text, which is about its number of operations."""
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def main() -> None:
    """Export one model."""
    import dataclasses

    from examples import export
    from examples.models import gpt

    p = argparse.ArgumentParser(prog="python -m bench._inputs")
    p.add_argument("--preset", required=True)
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--layers", type=int, default=0)
    p.add_argument("--seq", type=int, default=0)
    p.add_argument("--remat", action="store_true")
    p.add_argument("--scan", action="store_true")
    p.add_argument("-o", "--output", type=Path, required=True)
    args = p.parse_args()
    preset = gpt.PRESETS[args.preset]
    config = dataclasses.replace(
        preset,
        layers=args.layers or preset.layers,
        seq_len=args.seq or preset.seq_len,
        remat=args.remat,
        scan=args.scan,
    )
    _, train_step = gpt.make_train_step(config)
    export.write(export.lower(train_step, *gpt.abstract_inputs(config, args.batch)), args.output)


if __name__ == "__main__":
    main()
