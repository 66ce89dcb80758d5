"""Rows that several devices have a part of, gathered and summed before they are divided further.

Owns the workaround for a fault of XLA: `XLA: summed-gathers-miscut`.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.sdy import closed_dims, dims_of, mesh_axes, mesh_of, overlap, replicated_axes, tensor_sharding


def summed_as(gather: ir.Operation, wanted: Any, table: Any, module: ir.Module) -> Any:
    """How a gather from a table lies once what devices found of it is summed; None where XLA may divide it at once.

    Args:
      wanted: its sharding.
      table: its operand's; None where nothing says it.
    """
    axes = mesh_axes(module).get(mesh_of(wanted))
    if table is None or axes is None:
        return None
    numbers = stablehlo.GatherDimensionNumbers(gather.attributes["dimension_numbers"])
    offsets, rows = set(numbers.offset_dims), dims_of(table)
    summed = [axis for dim in numbers.start_index_map for axis in rows[dim]]
    dims, sizes = dims_of(wanted), dict(axes)

    def kept(dim: int) -> list[str]:
        return [a for a in dims[dim] if dim in offsets or not any(overlap(a, other, sizes) for other in summed)]

    first = [kept(dim) for dim in range(len(dims))]
    if not any(dims[dim] for dim in offsets) or all(len(a) == len(b) for a, b in zip(first, dims, strict=True)):
        return None
    return tensor_sharding(
        gather.context, mesh_of(wanted), first, [not c for c in closed_dims(wanted)], replicated_axes(wanted)
    )
