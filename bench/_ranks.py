"""Rank correlation: whether what is predicted puts plans in the order that they were measured in."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def ranks(values: Sequence[float], near: float = 1.0) -> list[float]:
    """Place of each value in rising order, from 0; those within a factor `near` of it share the mean of theirs."""
    return [
        (sum(other < value / near for other in values) + sum(other <= value * near for other in values) - 1) / 2
        for value in values
    ]


def spearman(first: Sequence[float], second: Sequence[float], near: float = 1.0) -> float | None:
    """Rank correlation of two lists of equal length; None where one of them is constant or has less than two values.

    Args:
      near: values within this factor of each other are equal.
    """
    a, b = ranks(first, near), ranks(second, near)
    if len(a) < 2 or len(set(a)) == 1 or len(set(b)) == 1:
        return None
    return statistics.correlation(a, b)
