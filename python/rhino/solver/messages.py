"""Lower bounds and rounded answers by messages between decisions (sequential tree-reweighted), with prices of memory.

Decisions of one colour have no pair in common and are updated at once. It must not know programs or neighbourhoods
(docs/design/solver.md, "Messages").
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from rhino.deadline import Deadline
from rhino.solver.model import Index, Model
from rhino.solver.problem import Numbers


@dataclass(frozen=True, slots=True)
class _PairGroup:
    """Pairs between an earlier and a later decision of one colour each, their tables padded to one shape."""

    early: Index
    late: Index
    pairs: Index
    tables: Numbers  # pair, early choice, late choice; infinite where there is no such choice
    turned: Numbers  # pair, late choice, early choice


class Messages:
    """The state of the messages: `to_early` and `to_late` have a row per pair.

    `bound` and `rounded` hold for the present prices, of which `prices` has one per slot of memory, 0 or more.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.width = _padded(max((len(costs) for costs in model.costs), default=1))
        self.colour = _colours(model)
        self.prices = np.zeros(len(model.room))
        self.own = np.full((len(model.costs), self.width), inf)
        for node, costs in enumerate(model.costs):
            self.own[node, : len(costs)] = costs
        count = len(model.pairs)
        self.to_early, self.to_late = np.zeros((count, self.width)), np.zeros((count, self.width))
        ends = [
            (p.left, p.right) if self.colour[p.left] < self.colour[p.right] else (p.right, p.left) for p in model.pairs
        ]
        self.early = np.array([a for a, _ in ends], dtype=np.intp)
        self.late = np.array([b for _, b in ends], dtype=np.intp)
        nodes = len(model.costs)
        forward, backward = np.bincount(self.early, minlength=nodes), np.bincount(self.late, minlength=nodes)
        self.share = 1.0 / np.maximum(1, np.maximum(forward, backward))
        self.kept = 1.0 - backward * self.share
        row = np.arange(self.width)
        self.early_at = (self.early[:, None] * self.width + row).ravel()
        self.late_at = (self.late[:, None] * self.width + row).ravel()
        self.groups = self._grouped()
        self.by_colour = [np.flatnonzero(self.colour == c) for c in range(int(self.colour.max(initial=0)) + 1)]
        starts, flat = model.flat_usages
        places = [
            owner * self.width + np.arange(len(used))
            for owner, used in zip(model.owner.tolist(), model.usages, strict=True)
        ]
        self.use_at = np.concatenate(places) if places else np.zeros(0, dtype=np.intp)
        self.use_of = np.repeat(np.arange(len(starts)), [len(used) for used in model.usages])
        self.flat = flat

    def _grouped(self) -> list[_PairGroup]:
        sizes = [len(costs) for costs in self.model.costs]
        buckets: dict[tuple[int, int, int, int], list[int]] = {}
        for number in range(len(self.model.pairs)):
            a, b = int(self.early[number]), int(self.late[number])
            key = int(self.colour[a]), int(self.colour[b]), _padded(sizes[a]), _padded(sizes[b])
            buckets.setdefault(key, []).append(number)
        groups = []
        for (_, _, high, wide), numbers in sorted(buckets.items()):
            tables = np.full((len(numbers), high, wide), inf)
            for i, number in enumerate(numbers):
                pair = self.model.pairs[number]
                full = pair.full if pair.left == self.early[number] else pair.full.T
                tables[i, : full.shape[0], : full.shape[1]] = full
            pairs = np.array(numbers, dtype=np.intp)
            groups.append(
                _PairGroup(self.early[pairs], self.late[pairs], pairs, tables, tables.transpose(0, 2, 1).copy())
            )
        return groups

    def priced(self) -> Numbers:
        """Costs of the choices with what their memory costs at present; infinite where there is no choice."""
        model = self.model
        if not len(self.flat):
            return self.own
        total = np.concatenate([[0.0], self.prices.cumsum()])
        worth = total[model.last] - total[model.first]
        paid = np.bincount(self.use_at, worth[self.use_of] * self.flat, self.own.size)
        return self.own + paid.reshape(self.own.shape)

    def sweep(self) -> tuple[float, Index]:
        """One pass forward, which rounds, and one backward; the bound after it, and the rounded answer."""
        costs = self.priced()
        choices = self._forward(costs)
        least = self.model.constant + self._backward(costs) - float(self.prices @ self.model.room)
        # Far more than sums miss by rounding.
        return least - 1e-9 * abs(least), choices

    def slack(self, choices: Index) -> Numbers:
        """Per decision by how much its choices and half of its pairs' cost more than they need to, by the messages.

        The bound that decisions and pairs prove each for itself, the sum of this, and what memory that is left is worth
        make up the cost of an answer: where there is slack it may be better, or the bound.
        """
        beliefs = self._beliefs(self.priced())
        found = beliefs[np.arange(len(choices)), choices] - beliefs.min(1)
        for group in self.groups:
            early, late = choices[group.early], choices[group.late]
            high, wide = group.tables.shape[1:]
            to_early, to_late = self.to_early[group.pairs, :high], self.to_late[group.pairs, :wide]
            rest = group.tables - to_early[:, :, None] - to_late[:, None, :]
            each = np.arange(len(early))
            half = 0.5 * (rest[each, early, late] - rest.min((1, 2)))
            found += np.bincount(group.early, half, len(found)) + np.bincount(group.late, half, len(found))
        return found

    def _beliefs(self, costs: Numbers) -> Numbers:
        """Costs with all messages added, a flat array."""
        size = costs.size
        sums = np.bincount(self.early_at, self.to_early.ravel(), size) + np.bincount(
            self.late_at, self.to_late.ravel(), size
        )
        return costs + sums.reshape(costs.shape)

    def _forward(self, costs: Numbers) -> Index:
        """Messages to the later; each decision takes what is best with those taken and what the later ones say."""
        choices = np.zeros(len(costs), dtype=np.intp)
        sums = self._beliefs(costs)  # messages that are not yet sent again are in it as they were
        decided = costs + np.bincount(self.early_at, self.to_early.ravel(), costs.size).reshape(costs.shape)
        for nodes, groups in zip(self.by_colour, self.of_colour(True), strict=True):
            choices[nodes] = decided[nodes].argmin(1)
            for group in groups:
                high, wide = group.tables.shape[1:]
                scaled = self.share[group.early, None] * sums[group.early, :high] - self.to_early[group.pairs, :high]
                sent, _ = _least(scaled[:, :, None] + group.tables)
                self._send(sums, group.late, sent - self.to_late[group.pairs, :wide])
                self.to_late[group.pairs, :wide] = sent
                self._send(decided, group.late, group.tables[np.arange(len(group.pairs)), choices[group.early]])
        return choices

    def _backward(self, costs: Numbers) -> float:
        """Messages to the earlier; what all chains of decisions cost at least."""
        sums = self._beliefs(costs)
        total = 0.0
        for nodes, groups in zip(self.by_colour[::-1], self.of_colour(False)[::-1], strict=True):
            total += float((self.kept[nodes] * sums[nodes].min(1)).sum())
            for group in groups:
                high, wide = group.tables.shape[1:]
                scaled = self.share[group.late, None] * sums[group.late, :wide] - self.to_late[group.pairs, :wide]
                sent, least = _least(scaled[:, :, None] + group.turned)
                total += float(least.sum())
                self._send(sums, group.early, sent - self.to_early[group.pairs, :high])
                self.to_early[group.pairs, :high] = sent
        return total

    def _send(self, sums: Numbers, nodes: Index, sent: Numbers) -> None:
        """Adds a row per pair to the decisions' sums."""
        order = np.argsort(nodes, kind="stable")
        first = np.flatnonzero(np.diff(nodes[order], prepend=-1))
        sums[nodes[order][first], : sent.shape[1]] += np.add.reduceat(sent[order], first, axis=0)

    def of_colour(self, forward: bool) -> list[list[_PairGroup]]:
        """Groups by the colour of the side that sends."""
        found: list[list[_PairGroup]] = [[] for _ in self.by_colour]
        for group in self.groups:
            found[int(self.colour[(group.early if forward else group.late)[0]])].append(group)
        return found


def _least(sums: Numbers) -> tuple[Numbers, Numbers]:
    """Per row the least of each column, less the least of all, and that; 0 where there is no choice."""
    least = sums.min(1)
    lowest = least.min(1, keepdims=True)
    shifted = least - lowest
    return np.where(np.isfinite(shifted), shifted, 0.0), lowest


def _padded(size: int) -> int:
    """A size with few others: the next multiple of 4, of 16 from 16 on."""
    step = 4 if size <= 16 else 16
    return -(-size // step) * step


def _colours(model: Model) -> Index:
    """A colour per decision, those with most pairs first, no two of a pair alike."""
    colour = np.full(len(model.costs), -1, dtype=np.intp)
    order = sorted(range(len(model.costs)), key=lambda node: (-len(model.neighbours[node]), node))
    for node in order:
        taken = {
            int(colour[end]) for n in model.neighbours[node] for end in (model.pairs[n].left, model.pairs[n].right)
        }
        colour[node] = next(c for c in range(len(taken) + 1) if c not in taken)
    return colour


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The best bound, answers rounded on the way (not all of them fit), and the prices of memory at the bound."""

    bound: float
    rounded: tuple[Index, ...]
    prices: Numbers
    messages: Messages


def relax(model: Model, sweeps: int, deadline: Deadline) -> Relaxed:
    """Raises the bound by sweeps, each followed by a step of the prices along what the rounded answer uses too much."""
    state = Messages(model)
    best, best_prices = -inf, state.prices
    rounded: list[Index] = []
    step = 1.0
    for sweep in range(sweeps):
        if sweep and deadline.over():
            break
        bound, choices = state.sweep()
        if bound > best:
            best, best_prices = bound, state.prices.copy()
        elif sweep > 20:
            step *= 0.97
        rounded = [*rounded[-11:], choices]
        if len(model.room):
            over = model.profile(choices) - model.room
            slope = np.where((over > 0) | (state.prices > 0), over, 0.0)
            length = float(slope @ slope)
            if length > 0:
                gap = max(abs(best), 1.0) * 0.02 * step
                state.prices = np.maximum(0.0, state.prices + gap / length * slope)
    return Relaxed(best, tuple(rounded), best_prices, state)
