"""Programs of which some columns are zero, without these columns and what follows from them.

Owns the rows as arrays, and that deduction. Knows nothing of the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Deductions in turn; a class that has one state left settles its neighbours in two.
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows `low <= a . x <= high` as arrays: row r has the entries `starts[r]` to `starts[r + 1]`."""

    starts: Any
    columns: Any
    coefficients: Any
    lows: Any
    highs: Any

    @classmethod
    def of(
        cls,
        starts: Sequence[int],
        columns: Sequence[int],
        coefficients: Sequence[float],
        lows: Sequence[float],
        highs: Sequence[float],
    ) -> Matrix:
        """The same as arrays of the types that the solver takes."""
        return cls(
            np.array(starts, dtype=np.int32),
            np.array(columns, dtype=np.int32),
            np.array(coefficients, dtype=np.float64),
            np.array(lows, dtype=np.float64),
            np.array(highs, dtype=np.float64),
        )

    def with_row(self, low: float, high: float, columns: Sequence[int], coefficients: Sequence[float]) -> Matrix:
        """These rows and one more."""
        return Matrix(
            np.append(self.starts, np.int32(len(self.columns) + len(columns))),
            np.concatenate([self.columns, np.array(columns, dtype=np.int32)]),
            np.concatenate([self.coefficients, np.array(coefficients, dtype=np.float64)]),
            np.append(self.lows, low),
            np.append(self.highs, high),
        )


def without(rows: Matrix, zero: Any) -> tuple[Matrix, Any]:
    """The rows that still say something where columns are zero, and the columns that are left, by number.

    Columns are in [0, 1]. Where the least that a row can be is the most that it may be, all that adds to it is zero,
    too, and the other way round: pairs of a state that is not taken. No answer is lost.

    Args:
      zero: for each column, whether it is zero.

    Returns: the rows over the columns that are left, numbered anew, and their old numbers, rising.
    """
    zero = zero.copy()
    of_row = np.repeat(np.arange(len(rows.lows)), np.diff(rows.starts))
    adds = rows.coefficients > 0
    for _ in range(_ROUNDS):
        live = ~zero[rows.columns]
        least, most = _reach(rows, of_row, live)
        full, empty = least >= rows.highs, most <= rows.lows
        settled = live & ((full[of_row] & adds) | (empty[of_row] & ~adds))
        if not settled.any():
            break
        zero[rows.columns[settled]] = True
    live = ~zero[rows.columns]
    least, most = _reach(rows, of_row, live)
    told = (least < rows.lows) | (most > rows.highs)
    entries = live & told[of_row]
    numbers = np.cumsum(told) - 1
    left = np.flatnonzero(~zero)
    place = np.cumsum(~zero) - 1
    counts = np.bincount(numbers[of_row[entries]], minlength=int(told.sum()))
    return (
        Matrix(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            place[rows.columns[entries]].astype(np.int32),
            rows.coefficients[entries],
            rows.lows[told],
            rows.highs[told],
        ),
        left,
    )


def _reach(rows: Matrix, of_row: Any, live: Any) -> tuple[Any, Any]:
    """The least and the most that each row can sum up to over live entries."""
    held = np.where(live, rows.coefficients, 0.0)
    count = len(rows.lows)
    least = np.bincount(of_row, np.minimum(held, 0.0), minlength=count)
    most = np.bincount(of_row, np.maximum(held, 0.0), minlength=count)
    return least, most
