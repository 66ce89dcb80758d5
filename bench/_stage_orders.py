"""Topological orders of the units of a stage problem: what systems that cut one order may start from.

Owns the orders; deterministic.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator

from rhino.pipeline.cut import StageProblem


def orders(problem: StageProblem, shuffles: int) -> Iterator[tuple[str, list[int]]]:
    """The order of the program, depth first, breadth first, and shuffled ones."""
    yield "program", list(range(len(problem.units)))
    yield "depth first", _order(problem, deque.pop)
    yield "breadth first", _order(problem, deque.popleft)
    for seed in range(shuffles):
        yield f"shuffled {seed}", _order(problem, _Some(seed))


class _Some:
    """Picks one of those that can be next, by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def __call__(self, ready: deque[int]) -> int:
        ready.rotate(self.random.randrange(len(ready)))
        return ready.popleft()


def _order(problem: StageProblem, pick: Callable[[deque[int]], int]) -> list[int]:
    missing = [0] * len(problem.units)
    after: list[list[int]] = [[] for _ in problem.units]
    for u, v in problem.precedences:
        missing[v] += 1
        after[u].append(v)
    ready = deque(u for u, count in enumerate(missing) if not count)
    found: list[int] = []
    while ready:
        u = pick(ready)
        found.append(u)
        for v in after[u]:
            missing[v] -= 1
            if not missing[v]:
                ready.append(v)
    return found
