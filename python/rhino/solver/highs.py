"""HiGHS as all programs here use it: silent, and given a program as rows.

Owns these two, and nothing of how programs are made or solved.
"""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

Reals = list[float] | NDArray[np.float64]
Places = list[int] | NDArray[np.int32] | NDArray[np.int64]


class SilentHighs(highspy.Highs):  # type: ignore[misc]
    """Prints nothing. HiGHS 1.16 introduces itself on standard output when callbacks are enabled, as it is made."""

    def enableCallbacks(self) -> None:  # noqa: N802  (HiGHS's name)
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


def linear_program(
    costs: Reals, upper: Reals, lows: Reals, highs: Reals, starts: Places, columns: Places, coefficients: Reals
) -> highspy.HighsLp:
    """Minimise costs . x with 0 <= x <= upper and, for each row r, lows[r] <= a_r . x <= highs[r].

    Args:
      starts: row r has the entries from starts[r] on of `columns` and `coefficients`, as in `Rows`.
    """
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(costs), len(lows)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = costs, np.zeros(len(costs)), upper
    lp.row_lower_, lp.row_upper_ = lows, highs
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = starts
    lp.a_matrix_.index_ = columns
    lp.a_matrix_.value_ = coefficients
    return lp
