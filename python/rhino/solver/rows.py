"""Constraints of an integer program, built one by one.

Owns how they are kept: in lists, which are cheap to append to. Knows nothing of what they are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Rows:
    """Constraints `low <= a . x <= high`, one after another: row r has the entries `starts[r]` to `starts[r + 1]`."""

    starts: list[int] = field(default_factory=lambda: [0])
    indices: list[int] = field(default_factory=list)
    coefficients: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)

    def add(self, low: float, high: float, terms: Iterable[tuple[int, float]]) -> None:
        """A new constraint over (variable, coefficient) terms."""
        for index, coefficient in terms:
            self.indices.append(index)
            self.coefficients.append(coefficient)
        self._end(low, high)

    def add_sum(self, low: float, high: float, ones: Sequence[int], minus_ones: Sequence[int] = ()) -> None:
        """A new constraint over the sum of some variables, less others."""
        self.indices += ones
        self.indices += minus_ones
        self.coefficients += [1.0] * len(ones) + [-1.0] * len(minus_ones)
        self._end(low, high)

    def _end(self, low: float, high: float) -> None:
        self.starts.append(len(self.indices))
        self.lows.append(low)
        self.highs.append(high)

    def extend(self, rows: Rows, variables: Sequence[int]) -> None:
        """The constraints of others, over `variables[i]` in place of i."""
        before = len(self.indices)
        self.indices.extend([variables[i] for i in rows.indices])
        self.coefficients.extend(rows.coefficients)
        self.starts.extend([before + end for end in rows.starts[1:]])
        self.lows.extend(rows.lows)
        self.highs.extend(rows.highs)
