"""The names of operations each of whose elements is made of the elements at its place in the operands.

Owns this list. Of other operations `fusible.is_elementwise` may find the same by their rules and shapes.
"""

from __future__ import annotations

_NAMES = """abs add and atan2 cbrt ceil clamp compare complex convert copy cosine count_leading_zeros divide
    exponential exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not
    or popcnt power real reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select
    shift_left shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor"""
ELEMENTWISE = frozenset(f"stablehlo.{name}" for name in _NAMES.split())
