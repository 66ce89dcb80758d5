"""Constants that are one number everywhere: making them, and telling which are zero or one.

Owns what the bindings cannot do for every element type: unsigned integers of 64 bits and complex numbers.
"""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

# A constant's value as it is printed, if it is the same everywhere; how zero looks, that with a sign included, and one.
_SPLAT = re.compile(r"dense<([^<>]*)> :")
_ZERO = re.compile(r"-?0(?:\.0+e[+-]00)?|false")
_ONES = ("1", "true", "1.000000e+00", "(1,0)", "(1.000000e+00,0.000000e+00)")


def splat(kind: Any, value: float) -> Any:
    """A constant of a tensor type with one value everywhere, at the current insertion point."""
    element = kind.element_type
    if isinstance(element, ir.ComplexType):
        # The bindings know no attributes of complex numbers.
        real = ir.RankedTensorType.get(kind.shape, element.element_type)
        return stablehlo.ComplexOp(splat(real, value), splat(real, 0)).result
    return stablehlo.ConstantOp(_filled(kind, value)).result


def _filled(kind: Any, value: float) -> Any:
    """The attribute of such a constant, of no complex type."""
    element = kind.element_type
    if isinstance(element, ir.IntegerType):
        # They take signed 64 bits, whatever the type.
        attribute: Any = ir.IntegerAttr.get(element, int(value) - (2**64 if value >= 2**63 else 0))
    else:
        attribute = ir.FloatAttr.get(element, float(value))
    return ir.DenseElementsAttr.get_splat(kind, attribute)


def is_identity(op: ir.Operation, kind: str) -> bool:
    """Whether an operation is a constant that changes nothing when accumulated."""
    if kind in ("add", "xor"):
        return is_zeros(op)
    if kind == "multiply":
        return is_ones(op)
    element = op.results[0].type.element_type
    if op.name != "stablehlo.constant" or not has_identity(kind, element):
        return False
    with op.location:
        return bool(op.attributes["value"] == _filled(op.results[0].type, identity(kind, element)))


def is_zeros(op: ir.Operation) -> bool:
    """Whether an operation is a constant that is zero everywhere, or the complex number of two."""
    if op.name == "stablehlo.complex":
        return all(isinstance(v, ir.OpResult) and is_zeros(v.owner.operation) for v in op.operands)
    text = _printed(op)
    return bool(text) and all(_ZERO.fullmatch(part) for part in text.strip("()").split(","))


def is_ones(op: ir.Operation) -> bool:
    """Whether an operation is a constant that is one everywhere, or the complex number of one and zero."""
    if op.name == "stablehlo.complex":
        real, imaginary = (v.owner.operation if isinstance(v, ir.OpResult) else None for v in op.operands)
        return real is not None and imaginary is not None and is_ones(real) and is_zeros(imaginary)
    return _printed(op) in _ONES


def _printed(op: ir.Operation) -> str:
    """How the one value of a constant is printed; nothing for others."""
    if op.name != "stablehlo.constant":
        return ""
    kind: Any = op.results[0].type
    if isinstance(kind.element_type, ir.ComplexType):
        text = op.get_asm(large_elements_limit=1)  # the bindings cannot read its attribute
    else:
        # The attribute's text: an operation's names the values of all its function first.
        value = op.attributes["value"]
        text = str(value) if isinstance(value, ir.DenseElementsAttr) and value.is_splat else ""
    found = _SPLAT.search(text)
    return found[1] if found else ""


def has_identity(kind: str, element: Any) -> bool:
    """Whether an element type has a number that changes nothing when accumulated: infinity, for a maximum of floats."""
    if kind in ("maximum", "minimum"):
        return isinstance(element, (ir.IntegerType, ir.BF16Type, ir.F16Type, ir.F32Type, ir.F64Type))
    return str(element) != "f8E8M0FNU"  # powers of two


def identity(kind: str, element: Any) -> float:
    """What changes nothing when accumulated."""
    if kind in ("add", "or", "xor"):
        return 0
    if kind == "multiply":
        return 1
    if kind == "and":
        return -1 if element.width > 1 else 1
    if not isinstance(element, ir.IntegerType):
        return float("-inf") if kind == "maximum" else float("inf")
    if element.width == 1:
        return 0 if kind == "maximum" else 1
    signed = not element.is_unsigned
    low = -(2 ** (element.width - 1)) if signed else 0
    high = 2 ** (element.width - (1 if signed else 0)) - 1
    return low if kind == "maximum" else high
