"""The cases of bench.kernels, and the StableHLO files they are planned from: exported for GPUs that need not be here.

Owns models, clusters and forced layouts. Imports neither jax nor MLIR; layouts are written into files by a process of
its own (`python -m bench._kernel_cases FILE OUT NAME`).
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench._common import run
from bench._quality_cases import Model, module

# Layouts that are forced, as dimensions of arguments split over the 8 devices of a host, by patterns of their names.
# Arguments that no pattern names are left to the search; optimizer state follows its parameter.
PINS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "data": {r"batch": (0,), r"state\.params": ()},
    "zero": {r"batch": (0,), r"state\.params.*\['kernel'\]": (1,), r"state\.params.*embedding": (0,)},
    "tensor": {
        r"batch": (),
        r"state\.params.*attn.*\['(query|key|value)'\]\['kernel'\]": (2,),
        r"state\.params.*attn.*\['out'\]\['kernel'\]": (1,),
        r"state\.params.*mlp.*\['up'\]\['kernel'\]": (2,),
        r"state\.params.*mlp.*\['down'\]\['kernel'\]": (1,),
    },
    "expert": {r"batch": (0,), r"state\.params.*\['experts'\]\['(up|down)'\]": (1,)},
}
_DEVICES = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A model with attention by a kernel, on a cluster.

    Attributes:
      stages: of the pipeline; 1 for none.
      pins: a name of `PINS`, whose layouts are forced.
      suffix: of the exported file, ".mlir" for text or ".mlirbc" for bytecode.
      plain_fits: whether the same step with plain attention is expected to fit.
    """

    model: Model
    cluster: str
    stages: int = 1
    pins: str = ""
    suffix: str = ".mlir"
    plain_fits: bool = True

    @property
    def name(self) -> str:
        """Short and unique."""
        parts = (f"{self.stages}-stages" if self.stages > 1 else "", self.pins, "bytecode" * (self.suffix != ".mlir"))
        return "-".join((f"{self.model.name}@{self.cluster}", *filter(None, parts)))

    @property
    def target(self) -> str:
        """What it is exported and compiled for."""
        return "a100" if "a100" in self.cluster else "h100"

    def file(self, attention: str) -> Path:
        """Path of the step with this attention, exported on one device.

        Raises:
          BenchError: it cannot be exported.
        """
        options = (*self.model.options, "--attention", attention, "--platform", self.target)
        path = module(replace(self.model, options=options), self.suffix)
        return pinned(path, self.pins) if self.pins else path


_LOOP = ("--scan", "--remat")
_GPT, _LLAMA = Model("gpt", "1.3b", options=_LOOP), Model("llama", "llama2-7b", batch=32, options=_LOOP)
_LONG = Model("llama", "llama2-7b", batch=1, options=(*_LOOP, "--seq", "131072"))
_MOE = Model("moe", "1.3b", options=_LOOP)
CASES: tuple[Case, ...] = (
    Case(_GPT, "dgx-h100:1"),
    Case(_GPT, "dgx-h100:1", suffix=".mlirbc"),
    Case(replace(_GPT, batch=1024), "dgx-h100:16"),
    Case(_GPT, "dgx-a100:4", stages=4),
    Case(_LLAMA, "dgx-h100:1"),
    Case(_LLAMA, "dgx-h100:1", suffix=".mlirbc"),
    Case(replace(_LLAMA, batch=256), "dgx-h100:16"),
    Case(replace(_LLAMA, batch=64), "dgx-a100:4", stages=4),
    Case(_LONG, "dgx-h100:1", plain_fits=False),
    *(Case(_GPT, "dgx-h100:1", pins=pins) for pins in ("data", "zero")),
    # With many examples it is cheaper to gather such weights where they are used: these have few.
    Case(replace(_GPT, batch=1), "dgx-h100:1", pins="tensor"),
    Case(replace(_MOE, batch=8), "dgx-h100:1", pins="expert"),
)
QUICK: tuple[Case, ...] = (Case(Model("gpt", "10m", batch=64, options=("--dtype", "bf16", "--scan")), "dgx-h100:1"),)


def pinned(path: Path, pins: str) -> Path:
    """The file with layouts forced on its arguments, made once."""
    digest = hashlib.sha256(repr(PINS[pins]).encode()).hexdigest()[:8]
    out = path.with_name(f"{path.stem}-{pins}-{digest}{path.suffix}")
    if not out.exists():
        draft = out.with_suffix(f".draft{path.suffix}")
        run([sys.executable, "-m", "bench._kernel_cases", path, draft, pins])
        draft.rename(out)
    return out


def dims_of(name: str, rank: int, pins: str) -> tuple[tuple[str, ...], ...] | None:
    """Axes per dimension of an argument, by the first pattern that its name begins with; None to leave it open."""
    for pattern, split in PINS[pins].items():
        if re.match(pattern, name):
            return tuple(("x",) if d in split else () for d in range(rank))
    return None


def main() -> None:
    """Write forced layouts into a file."""
    from jaxlib.mlir import ir

    from rhino.dialect import functions, sdy
    from rhino.plan.module import parse_module

    source, out, pins = sys.argv[1:]
    step = parse_module(Path(source).read_bytes(), source)
    sdy.add_mesh(step, "mesh", [("x", _DEVICES)])
    function = functions.find(step, "main")
    assert function is not None
    attributes = functions.argument_attributes(function)
    types = ir.FunctionType(function.attributes["function_type"].value).inputs
    for given, kind in zip(attributes, types, strict=True):
        dims = dims_of(given["rhino.name"].value, ir.RankedTensorType(kind).rank, pins)
        if dims is not None:
            given[sdy.SHARDING] = sdy.tensor_sharding(step.context, "mesh", dims)
    functions.set_argument_attributes(function, attributes)
    Path(out).write_text(str(step), encoding="utf-8")


if __name__ == "__main__":
    main()
