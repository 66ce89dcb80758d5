"""The solver's problem as plain data, checked when it is made, and what a solution of it costs.

It must not know files, how problems are solved, or where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhino.errors import RhinoError

Numbers = NDArray[np.float64]

# Costs from here on mean "never", by the convention of the contest's files; no sum of allowed ones comes near.
FORBIDDEN = 1e18


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One decision: a cost and a usage of memory per choice; the memory is used at times start <= t < end."""

    costs: Numbers
    usages: Numbers
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PairCosts:
    """What the choices of two decisions cost together: `costs[i, j]` for choice i of `left` and j of `right`."""

    left: int
    right: int
    costs: Numbers


@dataclass(frozen=True, slots=True)
class ChoiceProblem:
    """One choice per decision, at the least cost, with at most `limit` of memory in use at any time.

    Pairs may be given twice, and then both count; a pair of a decision with itself costs what is on its diagonal.

    Raises:
      RhinoError: a decision without a choice, usages that are not one per choice, a cost that is no number or is
        below zero, a pair of decisions that are not there or whose table has another shape.
    """

    nodes: tuple[Alternatives, ...]
    pairs: tuple[PairCosts, ...]
    limit: float | None
    name: str = ""

    def __post_init__(self) -> None:
        for number, node in enumerate(self.nodes):
            count = len(node.costs)
            if not count:
                raise RhinoError(f"node {number} has no choice", "give it at least one cost")
            if len(node.usages) != count:
                raise RhinoError(
                    f"node {number} has {count} costs and {len(node.usages)} usages", "give one per choice"
                )
            _positive(node.costs, f"costs of node {number}")
            _positive(node.usages, f"usages of node {number}")
        for number, pair in enumerate(self.pairs):
            for side in (pair.left, pair.right):
                if not 0 <= side < len(self.nodes):
                    raise RhinoError(f"edge {number} names node {side} of {len(self.nodes)}", "count nodes from 0")
            shape = (len(self.nodes[pair.left].costs), len(self.nodes[pair.right].costs))
            if pair.costs.shape != shape:
                raise RhinoError(
                    f"costs of edge {number} are {pair.costs.shape}, not {shape}", "one per pair of choices"
                )
            _positive(pair.costs, f"costs of edge {number}")
        if self.limit is not None and not self.limit >= 0:
            raise RhinoError(f"usage limit {self.limit} is below zero", "leave it out for no limit")

    def cost(self, choices: Sequence[int]) -> float:
        """What a choice per node costs: nodes and pairs together; `FORBIDDEN` or more where it is not allowed."""
        own = sum(float(node.costs[choice]) for node, choice in zip(self.nodes, choices, strict=True))
        return own + sum(float(pair.costs[choices[pair.left], choices[pair.right]]) for pair in self.pairs)

    def peak(self, choices: Sequence[int]) -> float:
        """The most memory in use at one time by a choice per node."""
        changes: dict[int, float] = {}
        for node, choice in zip(self.nodes, choices, strict=True):
            if node.start < node.end:
                changes[node.start] = changes.get(node.start, 0.0) + float(node.usages[choice])
                changes[node.end] = changes.get(node.end, 0.0) - float(node.usages[choice])
        most = used = 0.0
        for time in sorted(changes):
            used += changes[time]
            most = max(most, used)
        return most


def _positive(values: Numbers, what: str) -> None:
    if not (values >= 0).all():  # false for what is no number, too
        raise RhinoError(
            f"{what} have {values[~(values >= 0)][0]:g}, below zero or no number", "give numbers from 0 on"
        )
