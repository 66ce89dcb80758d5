"""Which dimensions a computation of one device handles like a batch: it does the same to each part of them.

Owns that analysis of a body's rules, and the rule that it gives to the manual computation around it. Knows no MLIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from rhino.program.data import Graph, Op, Rule
from rhino.program.disjoint import DisjointSets

# Axes per dimension, by factor, or -1 for what is given elsewhere.
Given = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Batches:
    """`places[v][d]` is the batch that dimension d of value v belongs to, or -1; shards must divide its size."""

    places: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


def batches(body: Graph) -> Batches:
    """The batches of a body's arguments and outputs, numbered in the order in which they come there.

    A batch passes from an argument to an output. Every operation that touches it has a factor for it that is neither
    summed nor needed whole, is the major one of each dimension that it is in, and is there in what the operation makes.
    """
    return _Analysis(body).run()


class _Analysis:
    def __init__(self, body: Graph) -> None:
        self.body = body
        self.at: list[int] = []
        total = 0
        for value in body.values:
            self.at.append(total)
            total += len(value.shape)
        self.sets = DisjointSets(total)
        self.limits = [size for value in body.values for size in value.shape]
        self.banned = [size == 1 for size in self.limits]

    def run(self) -> Batches:
        body = self.body
        for op in body.ops:
            for tie in op.ties:
                for v in tie[1:]:
                    for d in range(len(body.values[v].shape)):
                        self._join(self.at[tie[0]] + d, self.at[v] + d)
            if op.rule is not None:
                self._op(op, op.rule)
            elif not op.ties and not (op.name == "stablehlo.constant" and op.tag == "splat"):
                self._ban_all(op)
        numbers: dict[int, int] = {}
        for v in (*(a.value for a in body.arguments), *body.outputs):
            for d in range(len(body.values[v].shape)):
                root = self.sets.find(self.at[v] + d)
                if not self.banned[root]:
                    numbers.setdefault(root, len(numbers))
        places = tuple(
            tuple(numbers.get(self.sets.find(self.at[v.index] + d), -1) for d in range(len(v.shape)))
            for v in body.values
        )
        # Both dimensions of a square in one batch: neither can be split alone.
        twice = {b for dims in places for b in dims if b >= 0 and dims.count(b) > 1}
        read = {b for a in body.arguments for b in places[a.value]} - twice
        through = read & {b for v in body.outputs for b in places[v]}
        kept = {b: i for i, b in enumerate(b for b in range(len(numbers)) if b in through)}
        sizes = tuple(self.limits[root] for root, b in numbers.items() if b in kept)
        return Batches(tuple(tuple(kept.get(b, -1) for b in dims) for dims in places), sizes)

    def _op(self, op: Op, rule: Rule) -> None:
        tensors = [*zip(op.operands, rule.operands, strict=True), *zip(op.results, rule.results, strict=True)]
        read = {f for m in rule.operands for dim in m for f in dim}
        made = {f for m in rule.results for dim in m for f in dim}
        fixed = {*rule.reduction, *rule.replicate, *rule.permutation, *(read - made)}
        first: dict[int, int] = {}
        for v, mapping in tensors:
            for d, dim in enumerate(mapping):
                sized = [f for f in dim if rule.factor_sizes[f] > 1]
                at = self.at[v] + d
                for f in sized[1:]:
                    fixed.add(f)  # a minor factor: to split it would need the major one whole
                if not sized:
                    continue
                self._limit(at, rule.factor_sizes[sized[0]])
                if sized[0] in first:
                    self._join(first[sized[0]], at)
                else:
                    first[sized[0]] = at
        for f, at in first.items():
            if f in fixed:
                self.banned[self.sets.find(at)] = True
        if op.name == "stablehlo.iota":
            self._ban_all(op)

    def _ban_all(self, op: Op) -> None:
        for v in (*op.operands, *op.results):
            for d in range(len(self.body.values[v].shape)):
                self.banned[self.sets.find(self.at[v] + d)] = True

    def _limit(self, at: int, size: int) -> None:
        root = self.sets.find(at)
        self.limits[root] = gcd(self.limits[root], size)

    def _join(self, a: int, b: int) -> None:
        a, b = self.sets.find(a), self.sets.find(b)
        root = self.sets.join(a, b)
        self.limits[root] = gcd(self.limits[a], self.limits[b])
        self.banned[root] = self.banned[a] or self.banned[b]


def rule_around(
    body: Graph, found: Batches, axis_sizes: Sequence[int], given: tuple[Given, Given]
) -> tuple[Rule, tuple[int, ...]]:
    """The rule of a manual computation, and its factors for the batches of the body.

    A dimension is what its axes split, axis by axis, then the batch of a device's part of it, then the rest.

    Args:
      axis_sizes: of the axes it takes, whose factors come first.
      given: per operand and per result, the axes of each dimension, major first, as indices into `axis_sizes`.
    """
    sizes = [*axis_sizes, *found.sizes]
    offset = len(axis_sizes)
    whole: list[int] = []

    def mapped(v: int, dims: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        made = []
        for size, axes, batch in zip(body.values[v].shape, dims, found.places[v], strict=True):
            dim = list(axes)
            if batch >= 0:
                dim.append(offset + batch)
                size //= found.sizes[batch]
            if size > 1 or not dim:
                dim.append(len(sizes))
                whole.append(len(sizes))
                sizes.append(size)
            made.append(tuple(dim))
        return tuple(made)

    operands = tuple(mapped(a.value, dims) for a, dims in zip(body.arguments, given[0], strict=True))
    results = tuple(mapped(v, dims) for v, dims in zip(body.outputs, given[1], strict=True))
    rule = Rule(tuple(sizes), operands, results, replicate=tuple(f for f in whole if sizes[f] > 1))
    return rule, tuple(range(offset, offset + len(found.sizes)))
