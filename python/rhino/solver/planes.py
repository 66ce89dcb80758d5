"""Where the lowest of some planes is highest, over prices: the next point of a cutting-plane method.

Owns that small linear program, which HiGHS solves.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

import numpy as np

from rhino.solver.highs import SilentHighs, linear_program

# What a unit of each of several things costs.
Prices = tuple[float, ...]


class Plane(Protocol):
    """A height that is linear in the prices: `shown` at none, and `over` more for each unit of price."""

    @property
    def shown(self) -> float: ...

    @property
    def over(self) -> Prices: ...

    def at(self, prices: Prices) -> float:
        """Its height."""


def highest(planes: Sequence[Plane], count: int) -> tuple[Prices, float]:
    """The `count` prices between 0 and 1 at which the lowest of the planes is highest, and how high that is."""
    # Heights around one, for HiGHS's absolute tolerances; a column of its own for what is below zero.
    scale = max(abs(plane.shown) for plane in planes) or 1.0
    rows = np.array([[*(-over / scale for over in plane.over), 1.0, -1.0] for plane in planes])
    width = count + 2
    lp = linear_program(
        np.array([*[0.0] * count, -1.0, 1.0]),
        np.array([*[1.0] * count, inf, inf]),
        np.full(len(planes), -inf),
        np.array([plane.shown / scale for plane in planes]),
        np.arange(0, width * len(planes) + 1, width, dtype=np.int32),
        np.tile(np.arange(width, dtype=np.int32), len(planes)),
        rows.ravel(),
    )
    highs = SilentHighs()
    highs.setOptionValue("output_flag", False)
    highs.passModel(lp)
    highs.run()
    shares = list(highs.getSolution().col_value)[:count]
    prices = tuple([min(1.0, max(0.0, share)) for share in shares])
    return prices, min(plane.at(prices) for plane in planes)
