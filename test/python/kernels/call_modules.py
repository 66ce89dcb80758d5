"""Modules around one raw call, as a file would hold it: split by the passes, compiled, run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from rhino.compile import compile_module
from rhino.compile.executable import Executable
from rhino.dialect.context import make_context
from rhino.kernels.data import KernelCall, KernelTensor
from rhino.passes.pass_manager import PassManager

Dims = Sequence[str]


def module_text(call: KernelCall, mesh: Mapping[str, int] | None = None, dims: Mapping[int, Dims] | None = None) -> str:
    """A module that makes the call, its configuration as JSON; `dims` are the axes of some operands, "" for none."""
    types = [_type(t) for t in call.operands]
    given = {
        i: ", ".join(f'{{"{axis}"}}' if axis else "{}" for axis in dims)
        for i, dims in (dims or {}).items()
    }  # fmt: skip
    arguments = ", ".join(
        f"%a{i}: {kind}" + (f" {{sdy.sharding = #sdy.sharding<@mesh, [{given[i]}]>}}" if i in given else "")
        for i, kind in enumerate(types)
    )
    results = ", ".join(_type(t) for t in call.results)
    names = ", ".join(f"%a{i}" for i in range(len(types)))
    made = ", ".join(f"%0#{i}" if len(call.results) > 1 else "%0" for i in range(len(call.results)))
    count = f":{len(call.results)}" if len(call.results) > 1 else ""
    axes = ", ".join(f'"{name}"={size}' for name, size in (mesh or {}).items())
    config = json.dumps(json.dumps(call.config))
    return "\n".join([
        "module {",
        *([f"sdy.mesh @mesh = <[{axes}]>"] if mesh else []),
        f"func.func @main({arguments}) -> ({results}) {{",
        f"%0{count} = stablehlo.custom_call @{call.target}({names}) "
        f"{{api_version = 2 : i32, backend_config = {config}}} : ({', '.join(types)}) -> ({results})",
        f"return {made} : {results}",
        "}", "}",
    ])  # fmt: skip


def _type(t: KernelTensor) -> str:
    return f"tensor<{'x'.join([*map(str, t.shape), t.dtype])}>"


def partitioned(text: str) -> str:
    """The module with its calls described and split as their operands are."""
    module = ir.Module.parse(text, make_context())
    passes = "builtin.module(rhino-describe-kernels,rhino-partition-kernels)"
    PassManager.parse(passes, module.context).run(module)
    return str(module)


def compiled(call: KernelCall, target: str, mesh: Mapping[str, int], dims: Mapping[int, Dims]) -> Executable:
    """The split call, compiled for as many devices as the mesh has."""
    return compile_module(partitioned(module_text(call, mesh, dims)), target)


def run(
    call: KernelCall, operands: Sequence[Any], mesh: Mapping[str, int] | None = None, dims: Any = None
) -> list[Any]:
    """Results on CPU devices, as float32, of a call that is written as ordinary operations."""
    executable = compile_module(partitioned(module_text(call, mesh, dims)))
    return [np.asarray(x).astype(np.float32) for x in executable(*operands)]
