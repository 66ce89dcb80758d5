"""Element types: `f32` as MLIR spells it is what Rhino keeps and prints; NumPy's and HLO's spellings are read.

Owns the table of types with their sizes and names. Knows neither MLIR nor numpy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil

# MLIR's spelling -> (bits that an element takes in memory, NumPy's or ml_dtypes' name, HLO's name).
_TYPES = {
    "i1": (8, "bool", "pred"),
    **{f"i{n}": (n, f"int{n}", f"s{n}") for n in (2, 4, 8, 16, 32, 64)},
    **{f"ui{n}": (n, f"uint{n}", f"u{n}") for n in (2, 4, 8, 16, 32, 64)},
    "bf16": (16, "bfloat16", "bf16"),
    **{f"f{n}": (n, f"float{n}", f"f{n}") for n in (16, 32, 64)},
    "tf32": (32, "", ""),
    "complex<f32>": (64, "complex64", "c64"),
    "complex<f64>": (128, "complex128", "c128"),
}
FLOATS = frozenset({"bf16", "f16", "f32", "f64"})
NARROW_FLOATS = frozenset({"bf16", "f16"})
INTEGERS = frozenset(f"{sign}{bits}" for sign in ("i", "ui") for bits in (8, 16, 32, 64))
_SPELLED = {name: mlir for mlir, (_, numpy, hlo) in _TYPES.items() for name in (mlir, numpy, hlo) if name}
# f8E4M3FN to MLIR, float8_e4m3fn to ml_dtypes, f8e4m3fn to HLO; so, too, with four and six bits.
_SMALL = re.compile(r"(?:f|float)([468])_?(e\d+m\d+[a-z0-9]*)", re.IGNORECASE)


def element_type(name: str) -> str | None:
    """MLIR's spelling of a type in any of the three, `f8E4M3FN` of `float8_e4m3fn`; None if it is no element type."""
    small = _SMALL.fullmatch(name)
    return f"f{small[1]}{small[2].upper()}" if small else _SPELLED.get(name)


def numpy_name(element: str) -> str | None:
    """What numpy or ml_dtypes call an MLIR element type; None if neither has it."""
    small = _SMALL.fullmatch(element)
    return f"float{small[1]}_{small[2].lower()}" if small else (_TYPES.get(element, (0, "", ""))[1] or None)


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element of an MLIR element type; booleans take a byte. 0 for what has none, such as a token."""
    small = _SMALL.fullmatch(dtype)
    return (int(small[1]) if small else _TYPES.get(dtype, (0, "", ""))[0]) / 8


def item_bytes(dtype: str) -> int:
    """Bytes of one element where it lies by itself, as when it is moved: a whole one for smaller types."""
    return max(1, ceil(dtype_bytes(dtype)))


def type_text(dtype: object, shape: Iterable[int]) -> str:
    """A tensor's type for people, `f32[8,16]`.

    Args:
      dtype: in any spelling, also a dtype of numpy or jax; what is no element type is shown as it is.
    """
    return f"{element_type(str(dtype)) or dtype}[{','.join(map(str, shape))}]"
