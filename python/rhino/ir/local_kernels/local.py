"""One call on one device, and the local program that most have: the same call with the device's shapes.

Owns making that. What is more than that stands in files of its own, listed in `programs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.ir.kernel_calls import RULE
from rhino.ir.kernel_parts import suit_shapes
from rhino.ir.layouts import NamedMesh
from rhino.program.data import Dims


@dataclass(frozen=True, slots=True)
class Local:
    """One call on one device: its local operands, the types of its local results, and what splits which factor.

    `reads` and `makes` are the axes per dimension of whole operands and results. `mesh` is None, and nothing is split,
    where there is only one device. `begins` are, of split factors that are ordered, the place in the whole where the
    device's part begins, as a tensor<i32>.
    """

    op: ir.Operation
    operands: Sequence[Any]
    results: Sequence[Any]
    mesh: NamedMesh | None
    axes: tuple[tuple[int, tuple[str, ...]], ...] = ()
    reads: Sequence[Dims] = ()
    makes: Sequence[Dims] = ()
    begins: Mapping[int, Any] = field(default_factory=dict)

    @property
    def parts(self) -> int:
        """Into how many parts the arithmetic is divided."""
        return prod(self.mesh.ways(axes) for _, axes in self.axes) if self.mesh is not None else 1


def same_call(local: Local) -> Sequence[Any]:
    """The call itself with other types, and its configuration changed to suit them."""
    op = local.op
    made = op.clone()
    for name in (RULE, sdy.SHARDING):
        if name in made.attributes:
            del made.attributes[name]
    for position, operand in enumerate(local.operands):
        made.operands[position] = operand
    for result, kind in zip(made.results, local.results, strict=True):
        result.set_type(kind)
    suit_shapes(op, made, local.parts)
    return made.results
