"""What must hold of the lines whose lowest is the time of a collective."""

from __future__ import annotations

from itertools import pairwise


def assert_each_line_is_best_somewhere(lines: tuple[tuple[float, float], ...]) -> None:
    """Starts rise, slopes fall, and each line takes over from the one before at more bytes than that one did."""
    assert all(p[0] < q[0] and p[1] > q[1] for p, q in pairwise(lines))
    takeovers = [(q[0] - p[0]) / (p[1] - q[1]) for p, q in pairwise(lines)]
    assert all(p < q for p, q in pairwise(takeovers))
