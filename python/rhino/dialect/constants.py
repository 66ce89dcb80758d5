"""Constants that are one number everywhere: making them, and telling which are zero or one.

Owns what the bindings cannot do for every element type: unsigned integers of 64 bits and complex numbers.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from math import inf, prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.functions import attributes_of

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


def numbers_of(constant: ir.Operation) -> float:
    """How many numbers a constant is written as, one if it is the same everywhere; inf where they are elsewhere."""
    if _is_complex(constant):
        return 1 if _printed(constant) else prod(constant.results[0].type.shape)
    value = constant.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr):
        return inf
    return 1 if value.is_splat else len(value)


def value_of(constant: ir.Operation) -> Hashable:
    """The numbers of a constant, equal to those of another that has the same."""
    return constant.get_asm().partition("=")[2] if _is_complex(constant) else constant.attributes["value"]


def told_attributes(op: ir.Operation) -> Hashable:
    """The attributes of an operation, equal to those of another that has the same."""
    if op.name == "stablehlo.constant" and _is_complex(op):
        return value_of(op)
    return frozenset(attributes_of(op).items())


def _is_complex(constant: ir.Operation) -> bool:
    """Whether the bindings cannot read the attribute of a constant: they raise, or end the process."""
    return isinstance(constant.results[0].type.element_type, ir.ComplexType)


def _printed(op: ir.Operation) -> str:
    """How the one value of a constant is printed; nothing for others."""
    if op.name != "stablehlo.constant":
        return ""
    if _is_complex(op):
        text = op.get_asm(large_elements_limit=1)
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
