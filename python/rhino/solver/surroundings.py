"""Which decisions are freed together: those around a place where an answer is likely not the best.

It must not know how they are then decided (docs/design/solver.md, "Neighbourhoods").
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Set

import numpy as np

from rhino.solver.model import Index, Model
from rhino.solver.problem import Numbers

# Neighbourhoods that are decided at the same time: a number of its own, so that answers do not depend on the machine.
AT_ONCE = 4
# A round leaves out where less than this share of all weights is.
_REST = 0.01
# No decision weighs less than this share of the mean: any may still be a neighbour, or begin where none has weight.
_FLOOR = 1e-6


class Surroundings:
    """Neighbourhoods of a model, drawn by chance from a generator of its own."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.random = np.random.default_rng(0)
        self.others = [
            list(
                dict.fromkeys(pair.right if pair.left == node else pair.left for pair in (model.pairs[n] for n in own))
            )
            for node, own in enumerate(model.neighbours)
        ]

    def batches(self, weights: Numbers, cells: int) -> Iterator[list[list[int]]]:
        """Neighbourhoods until each decision with weight was in one; those of a batch have no pair between them.

        Args:
          weights: per decision, 0 or more: where to begin, and which neighbours come first.
          cells: of pairs and choices that a neighbourhood has at most.
        """
        floor = _FLOOR * float(weights.mean())
        weights = np.maximum(weights, floor if floor > 0 else 1.0)
        # Drawn one by one by their weights, without returning any (Efraimidis and Spirakis, 2006).
        order = np.argsort(self._keys(weights), kind="stable").tolist()
        rest, least = float(weights.sum()), _REST * float(weights.sum())
        seen: set[int] = set()
        while rest > least:
            batch: list[list[int]] = []
            taken: set[int] = set()
            for seed in order:
                if seed in taken:
                    continue
                near = self._near(seed, weights, cells, taken)
                batch.append(near)
                taken.update(near, *(self.others[node] for node in near))
                if len(batch) == AT_ONCE:
                    break
            new = [node for near in batch for node in near if node not in seen]
            seen.update(new)
            rest -= float(weights[new].sum())
            order = [seed for seed in order if seed not in seen]
            yield batch
            if not order:
                return

    def _keys(self, weights: Numbers) -> Numbers:
        return -np.log1p(-self.random.random(len(weights))) / weights

    def _near(self, seed: int, weights: Numbers, cells: int, taken: Set[int]) -> list[int]:
        """Decisions around one, by pairs, those that weigh much first, until their program is as large as it may be."""
        model, inside, used = self.model, set[int](), 0
        keys = self._keys(np.sqrt(weights))
        elsewhere = iter(np.argsort(keys, kind="stable").tolist())
        queued = {seed, *taken}
        heap = [(0.0, seed)]
        while heap:
            node = heapq.heappop(heap)[1]
            more = len(model.costs[node]) + sum(
                model.pairs[n].costs.size
                for n in model.neighbours[node]
                if model.pairs[n].left in inside or model.pairs[n].right in inside
            )
            if not inside or used + more <= cells:
                used += more
                inside.add(node)
                for other in self.others[node]:
                    if other not in queued:
                        queued.add(other)
                        heapq.heappush(heap, (float(keys[other]), other))
            if not heap and used < cells / 2:
                far = next((other for other in elsewhere if other not in queued), None)
                if far is not None:
                    queued.add(far)
                    heap.append((0.0, far))
        return sorted(inside)


def blame(model: Model, choices: Index, over: Numbers) -> Numbers:
    """Per decision how much its memory adds where there is too much: `over` per slot."""
    starts, flat = model.flat_usages
    total = np.concatenate([[0.0], over.cumsum()])
    used = flat[starts + choices[model.owner]] * (total[model.last] - total[model.first])
    return np.bincount(model.owner, used, len(model.costs)).astype(np.float64)
