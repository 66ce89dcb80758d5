"""The best cut where links differ, so that what a stage receives costs more or less by where it comes from.

Owns the branch and bound over segments: those that are left say at which stages a unit can be, that says what a net can
cost at least, and that leaves fewer segments. Where it leaves several cuts, one boundary is fixed after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from rhino.pipeline.cut.problem import StageOptions, StageProblem, allowed, evaluate, slowest_allowed

# Segments looked at, over all nodes, after which the search ends with the bound it has.
_SEGMENTS = 200_000
# How far above the bound cuts are looked for, relatively, one after the other until one is found.
_NEAR = (*(0.01 * 2**k for k in range(7)), inf)
# Pricing again pays if it leaves less than this share of the segments.
_SLOW = 0.9
# Parts of the range of the slowest stage's time.
_PARTS = 6
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
    return _NarrowingSearch(problem, options, member, best).run(layers, bound_s)


@dataclass(frozen=True, slots=True)
class _Node:
    """Segments that are left, stage by stage; of each, which nets arrive there; by stage and net, the price in use."""

    layers: tuple[Segments, ...]
    arriving: tuple[Any, ...]
    prices: Any

    @property
    def size(self) -> int:
        return sum(len(layer.inner) for layer in self.layers)

    def only(self, keep: Sequence[Any]) -> _Node:
        """Some of the segments of every stage."""
        return _Node(
            tuple(layer.only(k) for layer, k in zip(self.layers, keep, strict=True)),
            tuple(nets[k] for nets, k in zip(self.arriving, keep, strict=True)),
            self.prices,
        )


class _NarrowingSearch:
    """One search. Nets are columns; sources are the stages that a net can come from."""

    def __init__(
        self, problem: StageProblem, options: StageOptions, member: Any, best: tuple[tuple[int, ...] | None, float]
    ) -> None:
        self.problem, self.options, self.member = problem, options, member
        self.stages, self.best_s = best
        self.target, self.looked = inf, 0
        self.limit = slowest_allowed(problem, options) * (1 + 1e-9)
        nets = problem.merged_nets
        self.roots = np.array([net.root for net in nets], dtype=int)
        self.readers = np.zeros((len(problem.units), len(nets)), dtype=np.float32)
        for k, net in enumerate(nets):
            self.readers[list(net.readers), k] = 1.0
        self.relayed = np.array([net.kind != "shared" for net in nets], dtype=bool)
        self.seconds = self._seconds()

    def run(self, layers: Sequence[Segments], bound_s: float) -> tuple[tuple[int, ...] | None, float]:
        """Looks for cuts near the bound first: where what is known is far from it, few segments matter there."""
        for share in _NEAR:
            self.target = bound_s * (1 + share) if share < inf else inf
            least = self._search(layers)
            bound_s = max(bound_s, least)
            if least < self._cutoff() or self._cutoff() < self.target or self.looked >= _SEGMENTS:
                break
        return self.stages, min(self.best_s, bound_s)

    def _search(self, layers: Sequence[Segments]) -> float:
        """Branch and bound below the cutoff; returns what no cut is below."""
        bounds = self._bounds(layers)
        self._try(layers, bounds)
        cutoff = self._cutoff()
        layers = [layer.only(b < cutoff) for layer, b in zip(layers, bounds, strict=True)]
        if sum(len(layer.inner) for layer in layers) * len(self.roots) > _TABLE:
            return min(_least(bounds), cutoff)
        todo = [self._first(layers)]
        queue: list[tuple[float, int, _Node]] = []
        made = 0
        while True:
            for node in todo:
                made += 1
                self.looked += node.size
                narrower, least = self._narrowed(node)
                if narrower is not None:
                    heapq.heappush(queue, (least, made, narrower))
            if not queue or queue[0][0] >= self._cutoff() or self.looked >= _SEGMENTS:
                return min(queue[0][0] if queue else inf, self._cutoff())
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

    def _cutoff(self) -> float:
        """What a cut has to be below to matter."""
        return min(self.best_s / (1 + 0.99 * self.options.gap), self.target)

    def _first(self, layers: Sequence[Segments]) -> _Node:
        """The node of all segments, with nothing priced."""
        load = np.array([u.forward_s + u.backward_s for u in self.problem.units])
        found, arriving = [], []
        for layer, speed in zip(layers, self.problem.speeds, strict=True):
            inside = self.member[layer.outer] & ~self.member[layer.inner]
            arriving.append((inside.astype(np.float32) @ self.readers > 0.5) & ~inside[:, self.roots])
            work = inside @ load / speed
            found.append(Segments(layer.inner, layer.outer, work, work))
        return _Node(tuple(found), tuple(arriving), np.zeros((len(layers), len(self.roots))))

    def _narrowed(self, node: _Node) -> tuple[_Node | None, float]:
        """What is left when pricing what is left drops little more, and a bound on its cuts; None if nothing is."""
        while True:
            node = self._priced(node)
            bounds = self._bounds(node.layers)
            cutoff = self._cutoff()
            kept = [b < cutoff for b in bounds]
            if not all(k.any() for k in kept):
                return None, inf
            smaller = node.only(kept)
            if smaller.size > _SLOW * node.size:
                self._try(node.layers, bounds)
                return smaller, _least(bounds)
            node = smaller

    def _priced(self, node: _Node) -> _Node:
        """Each net from the nearest stage that can have it, given where units can be."""
        can_be = np.zeros((len(node.layers), len(self.problem.units)), dtype=bool)
        for s, layer in enumerate(node.layers):
            can_be[s] = (self.member[layer.outer] & ~self.member[layer.inner]).any(axis=0)
        # A stage that reads a net hands it on.
        has = can_be[:, self.roots] | ((can_be.astype(np.float32) @ self.readers > 0.5) & self.relayed)
        prices = np.where(has[:, None], self.seconds, inf).min(axis=0)
        prices = np.where(prices < inf, prices, node.prices)
        more = prices - node.prices
        found = []
        for s, (layer, nets) in enumerate(zip(node.layers, node.arriving, strict=True)):
            dearer = np.flatnonzero(more[s])
            nets = nets[:, dearer]
            exposed = (
                self.options.exposure * (nets @ (more[s] * self.relayed)[dearer]) if self.options.exposure else 0.0
            )
            cost = layer.cost + nets @ more[s][dearer] + exposed
            found.append(Segments(layer.inner, layer.outer, layer.time + exposed, cost))
        return _Node(tuple(found), node.arriving, prices)

    def _bounds(self, layers: Sequence[Segments]) -> list[Any]:
        """By stage and segment, what the cuts that have it and matter cost at least."""
        turns = self.problem.microbatches - 1
        rest = self._through(layers, [layer.cost for layer in layers], np.add)
        times = [np.where(layer.time <= self.limit, layer.time, inf) for layer in layers]
        slowest = self._through(layers, times, np.maximum)
        if not turns:
            return [np.where(a < inf, b, inf) for a, b in zip(slowest, rest, strict=True)]
        found = [turns * a + b for a, b in zip(slowest, rest, strict=True)]
        shortest, longest = _least(slowest), (self._cutoff() - _least(rest)) / turns
        if not shortest < longest < inf:
            return found
        # A cut of a short slowest stage may have to send more: part by part of what that stage can take.
        found = [np.full(len(b), inf) for b in found]
        for low, high in pairwise(np.linspace(shortest, longest, _PARTS + 1)):
            costs = [np.where(layer.time <= high, layer.cost, inf) for layer in layers]
            for best, a, b in zip(found, slowest, self._through(layers, costs, np.add), strict=True):
                np.minimum(best, turns * np.maximum(a, low) + b, out=best)
        return found

    def _through(self, layers: Sequence[Segments], values: Sequence[Any], join: Any) -> list[Any]:
        """By stage and segment, the least joint value of the paths through it."""
        before, after = [np.full(len(self.member), inf)], [np.full(len(self.member), inf)]
        before[0][0] = after[0][-1] = 0.0
        for layer, value in zip(layers, values, strict=True):
            before.append(np.full(len(self.member), inf))
            np.minimum.at(before[-1], layer.outer, join(before[-2][layer.inner], value))
        for layer, value in zip(reversed(layers), reversed(values), strict=True):
            after.append(np.full(len(self.member), inf))
            np.minimum.at(after[-1], layer.inner, join(after[-2][layer.outer], value))
        return [
            join(join(first[layer.inner], value), last[layer.outer])
            for layer, value, first, last in zip(layers, values, before, after[-2::-1], strict=False)
        ]

    def _try(self, layers: Sequence[Segments], bounds: Sequence[Any]) -> None:
        """Evaluate the cut that goes from each stage on by the segment of the least bound."""
        stages = [0] * len(self.problem.units)
        at = 0
        for s, (layer, bound) in enumerate(zip(layers, bounds, strict=True)):
            open_to = np.where(layer.inner == at, bound, inf)
            k = int(np.argmin(open_to))
            if open_to[k] == inf:
                return
            at = int(layer.outer[k])
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
            keep: list[Any] = [slice(None)] * len(node.layers)
            keep[s], keep[s + 1] = node.layers[s].outer == ideal, node.layers[s + 1].inner == ideal
            nodes.append(node.only(keep))
        return nodes


def _least(bounds: Sequence[Any]) -> float:
    """Of all cuts: each has a segment of every stage."""
    return max(float(b.min(initial=inf)) for b in bounds)
