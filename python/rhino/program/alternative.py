"""A plan that was tried and lost, as the search keeps it and a plan tells it. Owns the record alone."""

from __future__ import annotations

from math import inf

from rhino.schema.kinds import Float, Int, String
from rhino.schema.records import described, told


@described
class Alternative:
    """A candidate that lost, and why; its predictions where they were made."""

    name: str = told(String(), "what was tried")
    why: str = told(String(), "why it lost")
    step_time_s: float | None = told(
        Float(0),
        "its predicted seconds per step; of a pipeline by the price of `search.searched_s`",
        default=None,
    )
    peak_bytes: int | None = told(Int(0), "its predicted peak memory per device", default=None)

    @property
    def rank(self) -> tuple[float, str]:
        """By which alternatives are listed: the fastest first."""
        return inf if self.step_time_s is None else self.step_time_s, self.name
