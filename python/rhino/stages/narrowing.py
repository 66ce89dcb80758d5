"""The best cut where links differ, so that what a stage receives costs more or less by where it comes from.

Owns the branch and bound over segments: those that are left say at which stages a unit can be, that says what a net can
cost at least, and that leaves fewer segments. Where it leaves several cuts, one boundary is fixed after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from rhino.stages.problem import StageOptions, StageProblem, allowed, evaluate, slowest_allowed

# Nodes of the search, of some milliseconds each, after which it ends with the bound it has.
_NODES = 400
# Segments times nets that are looked at together.
_TABLE = 30_000_000


@dataclass(frozen=True, slots=True)
class Segments:
    """What one stage can be: units within the ideal `outer` and not within `inner` (indices of ideals).

    `time` and `cost` are the stage's seconds and all it adds to the objective, at least.
    """

    inner: Any
    outer: Any
    time: Any
    cost: Any

    def only(self, keep: Any) -> Segments:
        """Some of them."""
        return Segments(self.inner[keep], self.outer[keep], self.time[keep], self.cost[keep])


def narrow(
    problem: StageProblem,
    options: StageOptions,
    member: Any,
    layers: Sequence[Segments],
    best: tuple[tuple[int, ...] | None, float],
    bound_s: float,
) -> tuple[tuple[int, ...] | None, float]:
    """The best stages made of segments (by stage), and a bound on the objective of all.

    Args:
      member: for each ideal, which units it has; the first is empty, the last has all.
      best: stages that are known and their objective; or None and one that only less than matters.
      bound_s: what is known to be below every objective.
    """
    return _Search(problem, options, member, best).run(layers, bound_s)


@dataclass(frozen=True, slots=True)
class _Prices:
    """Of the segments of one stage: seconds of work, and which nets arrive there."""

    work: Any
    touched: Any

    def only(self, keep: Any) -> _Prices:
        return _Prices(self.work[keep], self.touched[keep])


@dataclass(frozen=True, slots=True)
class _Node:
    """Segments that are left, stage by stage."""

    layers: tuple[Segments, ...]
    prices: tuple[_Prices, ...]


class _Search:
    """One search. Nets are columns; sources are the stages that a net can come from."""

    def __init__(
        self, problem: StageProblem, options: StageOptions, member: Any, best: tuple[tuple[int, ...] | None, float]
    ) -> None:
        self.problem, self.options, self.member = problem, options, member
        self.stages, self.best_s = best
        self.limit = slowest_allowed(problem, options) * (1 + 1e-9)
        nets = problem.merged_nets
        self.roots = np.array([net.root for net in nets], dtype=int)
        self.readers = np.zeros((len(problem.units), len(nets)), dtype=np.float32)
        for k, net in enumerate(nets):
            self.readers[list(net.readers), k] = 1.0
        self.relayed = np.array([net.kind != "shared" for net in nets], dtype=bool)
        self.seconds = self._seconds()

    def run(self, layers: Sequence[Segments], bound_s: float) -> tuple[tuple[int, ...] | None, float]:
        kept, least = self._kept(layers)
        layers = [layer.only(k) for layer, k in zip(layers, kept, strict=True)]
        if sum(len(layer.inner) for layer in layers) * len(self.roots) > _TABLE:
            return self._answer(least, bound_s)
        todo = [_Node(tuple(layers), tuple(self._prices(s, layer) for s, layer in enumerate(layers)))]
        queue: list[tuple[float, int, _Node]] = []
        made = 0
        while True:
            for node in todo:
                made += 1
                narrower, least = self._narrowed(node)
                if narrower is not None:
                    heapq.heappush(queue, (least, made, narrower))
            if not queue or queue[0][0] >= self._cutoff() or made >= _NODES:
                return self._answer(queue[0][0] if queue else inf, bound_s)
            todo = self._branches(heapq.heappop(queue)[2])

    def _seconds(self) -> Any:
        """Of each net from one stage to another, as `StageProblem.seconds`; infinite where the net never goes."""
        n, nets = self.problem.stages, self.problem.merged_nets
        count, nbytes = np.array([net.count for net in nets]), np.array([net.nbytes for net in nets])
        kinds = np.array([net.kind for net in nets])
        found = np.full((n, n, len(nets)), inf)

        def hop(a: int, b: int) -> Any:
            return count * self.problem.latency_s[a][b] + nbytes * self.problem.byte_s[a][b]

        for a in range(n):
            for way, against in ((1, "backward"), (-1, "forward")):
                hops = np.zeros(len(nets))
                for b in range(a + way, n if way > 0 else -1, way):
                    hops = hops + hop(b - way, b)
                    found[a, b] = np.where(kinds == against, inf, np.minimum(hop(a, b), hops))
        return found

    def _answer(self, least: float, bound_s: float) -> tuple[tuple[int, ...] | None, float]:
        return self.stages, min(self.best_s, max(bound_s, min(least, self._cutoff())))

    def _cutoff(self) -> float:
        """What a cut has to be below to matter."""
        return self.best_s / (1 + 0.99 * self.options.gap)

    def _prices(self, s: int, layer: Segments) -> _Prices:
        inside = self.member[layer.outer] & ~self.member[layer.inner]
        load = np.array([u.forward_s + u.backward_s for u in self.problem.units])
        touched = (inside.astype(np.float32) @ self.readers > 0.5) & ~inside[:, self.roots]
        return _Prices(inside @ load / self.problem.speeds[s], touched)

    def _narrowed(self, node: _Node) -> tuple[_Node | None, float]:
        """What is left when pricing what is left drops no more, and a bound on its cuts; None if nothing is."""
        while True:
            layers = self._priced(node)
            kept, least = self._kept(layers)
            if not all(k.any() for k in kept):
                return None, inf
            node = _Node(
                tuple(layer.only(k) for layer, k in zip(layers, kept, strict=True)),
                tuple(prices.only(k) for prices, k in zip(node.prices, kept, strict=True)),
            )
            if all(k.all() for k in kept):
                return node, least

    def _priced(self, node: _Node) -> list[Segments]:
        """Each net from the nearest stage that can have it, given where units can be."""
        n = self.problem.stages
        can_be = np.zeros((n, len(self.problem.units)), dtype=bool)
        for s, layer in enumerate(node.layers):
            can_be[s] = (self.member[layer.outer] & ~self.member[layer.inner]).any(axis=0)
        # A stage that reads a net hands it on.
        has = can_be[:, self.roots] | ((can_be.astype(np.float32) @ self.readers > 0.5) & self.relayed)
        found = []
        for s, (layer, prices) in enumerate(zip(node.layers, node.prices, strict=True)):
            nearest = np.where(has, self.seconds[:, s], inf).min(axis=0)
            nearest[nearest == inf] = 0.0
            sent = prices.touched @ nearest
            time = prices.work + self.options.exposure * (prices.touched @ (nearest * self.relayed))
            found.append(Segments(layer.inner, layer.outer, time, time + sent))
        return found

    def _kept(self, layers: Sequence[Segments]) -> tuple[list[Any], float]:
        """Which segments are of cuts that matter, and a bound on the cuts. Tries the one that looks best."""
        turns = self.problem.microbatches - 1
        before, after = self._tables(layers)
        bounds = []
        for s, layer in enumerate(layers):
            slowest = np.maximum(layer.time, np.maximum(before[s][1][layer.inner], after[s + 1][1][layer.outer]))
            rest = before[s][0][layer.inner] + layer.cost + after[s + 1][0][layer.outer]
            bounds.append(np.where((slowest <= self.limit) & (rest < inf), turns * slowest + rest, inf))
        least = max(float(b.min(initial=inf)) for b in bounds)
        if least < self._cutoff():
            self._try(layers, after)
        cutoff = self._cutoff()
        return [b < cutoff for b in bounds], least

    def _tables(self, layers: Sequence[Segments]) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """By boundary, for each ideal: least cost and least slowest stage of what comes before it, and after it."""
        ideals = len(self.member)

        def step(given: tuple[Any, Any], start: Any, end: Any, layer: Segments) -> tuple[Any, Any]:
            cost, slowest = np.full(ideals, inf), np.full(ideals, inf)
            np.minimum.at(cost, end, given[0][start] + layer.cost)
            np.minimum.at(slowest, end, np.maximum(given[1][start], layer.time))
            slowest[cost == inf] = 0.0  # of nothing; times no turns it is a number
            return cost, slowest

        at_first, at_last = np.full(ideals, inf), np.full(ideals, inf)
        at_first[0] = at_last[-1] = 0.0
        before, after = [(at_first, np.zeros(ideals))], [(at_last, np.zeros(ideals))]
        for layer in layers:
            before.append(step(before[-1], layer.inner, layer.outer, layer))
        for layer in reversed(layers):
            after.append(step(after[-1], layer.outer, layer.inner, layer))
        return before, after[::-1]

    def _try(self, layers: Sequence[Segments], after: Sequence[tuple[Any, Any]]) -> None:
        """Evaluate the cut whose stages are chosen one by one, each by the bound on the cuts that begin like this."""
        turns = self.problem.microbatches - 1
        stages = [0] * len(self.problem.units)
        at, slowest = 0, 0.0
        for s, layer in enumerate(layers):
            cost, longest = after[s + 1]
            bound = turns * np.maximum(slowest, np.maximum(layer.time, longest[layer.outer]))
            k = int(np.argmin(np.where(layer.inner == at, bound + layer.cost + cost[layer.outer], inf)))
            at, slowest = int(layer.outer[k]), max(slowest, float(layer.time[k]))
            for u in np.flatnonzero(self.member[at] & ~self.member[layer.inner[k]]):
                stages[int(u)] = s
        found = evaluate(self.problem, self.options, stages)
        if found.objective_s < self.best_s and allowed(self.problem, self.options, found):
            self.stages, self.best_s = tuple(stages), found.objective_s

    def _branches(self, node: _Node) -> list[_Node]:
        """One for each ideal at the boundary that has fewest, but several; none if there is only one cut."""
        ends = [np.unique(layer.outer) for layer in node.layers[:-1]]
        several = [s for s, found in enumerate(ends) if len(found) > 1]
        if not several:
            return []
        s = min(several, key=lambda t: (len(ends[t]), t))
        nodes = []
        for ideal in ends[s]:
            layers, prices = list(node.layers), list(node.prices)
            for t, keep in ((s, layers[s].outer == ideal), (s + 1, layers[s + 1].inner == ideal)):
                layers[t], prices[t] = layers[t].only(keep), prices[t].only(keep)
            nodes.append(_Node(tuple(layers), tuple(prices)))
        return nodes
