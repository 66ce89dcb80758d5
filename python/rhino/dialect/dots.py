"""Dots with their operands the other way round: what may not be exchanged, and what a dot then says of them.

Owns what a dot says of its operands by their place, but for their dimensions. What those become is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_PRECISION = "precision_config"


def tells_apart(op: ir.Operation) -> bool:
    """Whether a dot's algorithm takes one operand otherwise than the other."""
    if "algorithm" not in op.attributes:
        return False
    told = stablehlo.DotAlgorithm(op.attributes["algorithm"])
    left, right = told.lhs_precision_type, told.rhs_precision_type
    return (left, told.lhs_component_count) != (right, told.rhs_component_count)


def exchanged(attributes: Mapping[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    """A dot's attributes, the numbers of its dimensions aside, with its operands the other way round."""
    found = dict(attributes)
    if _PRECISION in found:
        found[_PRECISION] = ir.ArrayAttr.get([*ir.ArrayAttr(found[_PRECISION])][::-1])
    return found
