"""The local program of a kernel that its step brings along: what the trace's body gives for a device's parts.

Owns fetching it and putting it in place. How it is made is the body's business (`rhino.kernels.bodies`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import parse_bytes
from rhino.ir.diagnostics import PassError, errors_at
from rhino.ir.inline import inline_calls
from rhino.ir.local_kernels.local import Local
from rhino.kernels.bodies import find_body


def traced(local: Local) -> Sequence[Any]:
    """Copies what the body computes to the insertion point. Raises PassError where there is no body, or it refuses."""
    op = local.op
    name = str(op.attributes["backend_config"].value)
    body = find_body(name)
    if body is None:
        raise PassError(
            op,
            f"kernel '{name.partition('#')[0]}' can be split only while the step that brings it is planned",
            ["plan the step in Python with rhino.parallelize"],
        )
    mesh = () if local.mesh is None else local.mesh.axes
    shapes = [tuple(v.type.shape) for v in op.operands]
    reads = local.reads or [((),) * len(shape) for shape in shapes]
    makes = local.makes or [((),) * len(r.type.shape) for r in op.results]
    with errors_at(op):
        made = body.local(mesh, shapes, reads, makes)
    return _copied(parse_bytes(made, op.context), local.operands)


def _copied(module: ir.Module, operands: Sequence[Any]) -> list[Any]:
    """The operations of @main, or of the manual computation that it is, on other operands."""
    inline_calls(module)
    main = functions.find(module, "main")
    assert main is not None
    block = main.regions[0].blocks[0]
    manual = next((op.operation for op in block.operations if op.operation.name == "sdy.manual_computation"), None)
    if manual is not None:
        block = manual.regions[0].blocks[0]
    values = dict(zip(block.arguments, operands, strict=True))
    *ops, returned = [op.operation for op in block.operations]
    functions.copy_all(ops, values)
    return [values[v] for v in returned.operands]
