"""What a kernel that is no product does: bytes, element-wise operations, exponentials of rows, atomic additions.

Owns how much each operation counts, whatever spells it, StableHLO or HLO. Knows no device: seconds are
`rhino.machine.rates`'.
"""

from __future__ import annotations

from dataclasses import dataclass

# Operations that an f32 element takes, where it is not one. Timed alone on an H200 (bench/data/gpu_steps.md), powers,
# log_plus_one, erfc, and integers' shifts and additions take longer than their bytes, which gives their counts; others
# that were timed are at most 37. Theirs are guesses below that, and those of what was not timed, by their series.
_COUNTS = {
    "add": 0.6, "subtract": 0.6, "multiply": 0.6,
    "exponential": 4.0, "divide": 8.0, "sqrt": 6.0, "rsqrt": 6.0, "cbrt": 12.0, "log": 6.0,
    "exponential_minus_one": 12.0, "logistic": 12.0, "tanh": 15.0, "sine": 20.0, "cosine": 20.0,
    "erf": 25.0, "log_plus_one": 30.0, "tan": 30.0, "remainder": 20.0,
    "erfc": 50.0, "erf_inv": 50.0, "power": 56.0, "atan2": 50.0, "lgamma": 100.0, "digamma": 100.0,
    "convert": 0.5,
}  # fmt: skip
_INTEGER = 0.5
# They name, repeat, choose or order elements.
_NONE = frozenset(
    """parameter constant iota broadcast broadcast_in_dim bitcast bitcast_convert reshape transpose copy slice
    dynamic_slice dynamic_update_slice concatenate pad gather scatter reverse tuple get_tuple_element
    optimization_barrier""".split()
)


def operations(name: str, integer: bool = False) -> float:
    """Operations of one element, by the name of an operation without its dialect: "add", "exponential"."""
    if name in _NONE:
        return 0.0
    return _INTEGER if integer else _COUNTS.get(name, 1.0)


@dataclass(frozen=True, slots=True)
class Work:
    """One execution of a kernel that is no product.

    Attributes:
      nbytes: bytes read and written.
      operations: of all elements, as `operations` counts.
      row_exponentials: exponentials in a kernel that sums its rows itself, each times the square of how many sums of
        rows follow one after the other there: a softmax of two has each exponential four times.
      additions: floats of 16 bits that are added to memory that other threads add to, too.
      clashes: how many of these, on average, are added to the same element.
    """

    nbytes: float = 0.0
    operations: float = 0.0
    row_exponentials: float = 0.0
    additions: float = 0.0
    clashes: float = 0.0


def scattered(updates: int, element_bytes: float, floats: bool, target: int) -> tuple[float, float]:
    """Additions and clashes of a scatter that adds so many elements to a target of so many.

    Of floats of 16 bits alone: others are added by the memory itself, as fast as they come.
    """
    if not floats or element_bytes != 2:
        return 0.0, 0.0
    return float(updates), max(0.0, updates / max(1, target) - 1.0)
