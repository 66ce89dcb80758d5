"""Graph -> sharding problem: cheap ops joined by shared dimensions form one *cone* with a single decision.

Dots, convolutions, gathers and the like decide for themselves. Owns where cones end
(docs/design/search.md, "Cones").
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import gcd

from rhino.program.data import Graph, Op
from rhino.program.disjoint import DisjointSets
from rhino.program.fusion import is_invariant
from rhino.program.operations import APART, CONSTRAINTS, HEAVY, SOURCES
from rhino.program.turned import turned_round
from rhino.sharding.problem import Node, Problem, leading
from rhino.sharding.uneven import mark
from rhino.sharding.updates import Update, updates
from rhino.sharding.views import join_views
from rhino.sharding.wiring import wire

# Ops whose factors contract or index: each gets a decision of its own.
_OWN = HEAVY | CONSTRAINTS | {"stablehlo.dynamic_gather"}


def build_problem(
    graph: Graph, whole: Iterable[tuple[int, int]] = (), uneven: bool = False, parted: float = 1.0
) -> Problem:
    """Decomposes a program in time linear in its ops.

    Args:
      graph: the program, calls inlined.
      whole: (value, dimension) for dimensions that nothing may split.
      uneven: whether values inside the program may be split into parts that differ.
      parted: of which part of the parameters' bytes the updates may be laid out for themselves, the largest first. What
        is found with less is a plan of the problem with more, too, at the same cost.
    """
    problem = _ProblemBuilder(graph, whole, parted).build()
    if uneven:
        mark(problem)
    return problem


class _ProblemBuilder:
    def __init__(self, graph: Graph, whole: Iterable[tuple[int, int]], parted: float) -> None:
        self.graph, self.parted = graph, parted
        self.free = self._free_values()
        self.users = graph.users()
        self.groups = DisjointSets(len(graph.values))
        self.offsets: list[int] = []
        total = 0
        for value in graph.values:
            self.offsets.append(total)
            total += len(value.shape)
        self.dims = DisjointSets(total)
        self.limits = [s for value in graph.values for s in value.shape]
        for v, d in whole:
            self.limits[self.offsets[v] + d] = 1
        self.role = [self._role(op) for op in graph.ops]
        for op in graph.ops:
            if self.role[op.index] == "pull":
                self._keep_whole(op)
        self.updates: list[Update] = []
        self.lost: list[tuple[int, int, int]] = []

    def _free_values(self) -> list[bool]:
        """Values that cost nothing in any layout: constants, iotas, what is made of these and scalars, and nothing.

        Tensors without elements stay whole: jax cannot put their parts together.
        """
        graph = self.graph
        values = graph.values
        free = [not value.elements for value in values]
        for op in graph.ops:
            if op.name in SOURCES or op.tag == APART:
                free[op.results[0]] = True
            elif (
                op.rule is not None
                and op.name not in _OWN
                and op.kernel is None
                and op.operands
                and len(op.results) == 1
            ):
                free[op.results[0]] |= values[op.results[0]].shape != () and all(
                    free[v] or not values[v].shape for v in op.operands
                )
            for tie in op.ties:
                # What a loop changes does not stay free; what it only carries does.
                kept = free[tie[0]] and (is_invariant(op, tie) or not values[tie[0]].elements)
                for v in tie:
                    free[v] = kept
        return free

    def build(self) -> Problem:
        graph = self.graph
        self.updates = updates(graph, self.role, self.free, self.parted)
        reads = {read for update in self.updates for read in update.reads}
        results = {update.result for update in self.updates}
        for op in graph.ops:
            if self.role[op.index] == "merge":
                self._merge(op, reads)
            for tie in op.ties:
                self._tie(tie)
        for argument in graph.arguments:
            if argument.alias >= 0 and graph.outputs[argument.alias] not in results:
                self._tie((argument.value, graph.outputs[argument.alias]))
        self._rejoin()
        join_views(graph, self._reshapes(), self._dims, self._same)
        return self._number()

    def _rejoin(self) -> None:
        """Updates that something else joins with their parameter are no decision of their own."""
        while met := [u for u in self.updates if any(self._is_joined(v, u.result) for v in self._read_by(u))]:
            self.updates = [update for update in self.updates if update not in met]
            reads = {read for update in self.updates for read in update.reads}
            for update in met:
                self._tie((update.parameter, update.result))
                for o in dict.fromkeys(o for o, _ in update.reads):
                    self._merge(self.graph.ops[o], reads)

    def _read_by(self, update: Update) -> list[int]:
        return [update.parameter, *(self.graph.ops[o].operands[slot] for o, slot in update.reads)]

    def _is_joined(self, v: int, other: int) -> bool:
        return self.groups.find(v) == self.groups.find(other)

    def _role(self, op: Op) -> str:
        values = self.graph.values
        if op.ties or op.name in SOURCES or op.tag == APART:
            return "none"
        if op.local >= 0 or op.name in _OWN or op.rule is None or op.kernel is not None:
            return "heavy"
        if op.name == "stablehlo.reduce" and not op.rule.replicate:
            return "reduce"
        if op.rule.reduction:
            return "heavy"
        if op.name == "stablehlo.broadcast_in_dim" and values[op.operands[0]].elements < values[op.results[0]].elements:
            return "pull"
        # In the layout of its result it reads what the forward convolution reads, and that is gathered once. In that of
        # the kernel both would be gathered. XLA: resharded-once
        return "pull" if not turned_round(self.graph).isdisjoint(op.results) else "merge"

    def _keep_whole(self, op: Op) -> None:
        """Splits no dimension of a result that needs the whole of the operand along it."""
        assert op.rule is not None
        fixed = (*op.rule.replicate, *op.rule.permutation)
        for d, dim in enumerate(op.rule.results[0]):
            if leading(op.rule, dim) in fixed:
                self.limits[self.offsets[op.results[0]] + d] = 1

    def _tie(self, tie: tuple[int, ...]) -> None:
        first = tie[0]
        shape = self.graph.values[first].shape
        for other in tie[1:]:
            if self.graph.values[other].shape != shape or not shape or self.free[first]:
                continue
            self.groups.join(first, other)
            for d in range(len(shape)):
                self._join_dims(self.offsets[first] + d, self.offsets[other] + d, shape[d])

    def _join_dims(self, a: int, b: int, size: int) -> None:
        a, b = self.dims.find(a), self.dims.find(b)
        limit = gcd(gcd(self.limits[a], self.limits[b]), size)
        self.limits[self.dims.join(a, b)] = limit

    def _tensors(self, op: Op, apart: Container[tuple[int, int]]) -> list[tuple[int, tuple[tuple[int, ...], ...]]]:
        assert op.rule is not None
        read = [
            pair
            for slot, pair in enumerate(zip(op.operands, op.rule.operands, strict=True))
            if (op.index, slot) not in apart
        ]
        pairs = [*read, *zip(op.results, op.rule.results, strict=True)]
        return [(v, m) for v, m in pairs if not self.free[v] and m]

    def _merge(self, op: Op, apart: Container[tuple[int, int]]) -> None:
        """Joins what an op reads and makes, but for operands, as (op, position), that are laid out apart."""
        rule = op.rule
        assert rule is not None
        fixed = (*rule.replicate, *rule.permutation)
        tensors = self._tensors(op, apart)
        owner: dict[int, int] = {}
        for v, mapping in tensors:
            self.groups.join(tensors[0][0], v)
            for d, dim in enumerate(mapping):
                f = leading(rule, dim)
                if f < 0 or f in fixed:
                    continue
                at = self.offsets[v] + d
                if f in owner:
                    self._join_dims(owner[f], at, rule.factor_sizes[f])
                else:
                    owner[f] = at
        if op.results and not self.free[op.results[0]]:
            kept = {leading(rule, dim) for dim in rule.results[0]} - set(fixed)
            for v, mapping in tensors[: len(tensors) - len(op.results)]:
                for d, dim in enumerate(mapping):
                    f = leading(rule, dim)
                    if f >= 0 and f not in kept:
                        self.lost.append((v, d, op.index))

    def _reshapes(self) -> list[Op]:
        """Those within a cone."""
        return [
            op
            for op in self.graph.ops
            if op.name == "stablehlo.reshape"
            and self.role[op.index] == "merge"
            and not (self.free[op.operands[0]] or self.free[op.results[0]])
        ]

    def _dims(self, v: int) -> tuple[int, ...]:
        """The dimensions of a value, -1 for those that nothing splits."""
        at, shape = self.offsets[v], self.graph.values[v].shape
        return tuple([self.dims.find(at + d) if size > 1 else -1 for d, size in enumerate(shape)])

    def _same(self, first: int, other: int) -> bool:
        """Joins two values of one cone dimension by dimension; whether any was not joined yet."""
        changed = False
        for a, b, size in zip(self._dims(first), self._dims(other), self.graph.values[first].shape, strict=True):
            if a != b:
                self._join_dims(a, b, size)
                changed = True
        return changed

    def _number(self) -> Problem:
        graph = self.graph
        node_of = [-1] * len(graph.values)
        classes: list[tuple[int, ...]] = [()] * len(graph.values)
        nodes: list[Node] = []
        by_root: dict[int, int] = {}
        class_ids: list[dict[int, int]] = []
        for value in graph.values:
            v = value.index
            if self.free[v] or not value.shape:
                continue
            root = self.groups.find(v)
            if root not in by_root:
                by_root[root] = len(nodes)
                nodes.append(Node(len(nodes), "cone"))
                class_ids.append({})
            n = node_of[v] = by_root[root]
            nodes[n].members.append(v)
            ids = class_ids[n]
            roots = [self.dims.find(self.offsets[v] + d) for d in range(len(value.shape))]
            # Two dims of one value in one class (a matrix and its transpose) cannot both be sharded: the first is.
            classes[v] = tuple(
                ids.setdefault(r, len(ids)) if self.limits[r] > 1 and r not in roots[:d] else -1
                for d, r in enumerate(roots)
            )
        for n, ids in enumerate(class_ids):
            nodes[n].limits = tuple(self.limits[r] for r in ids)
        problem = Problem(graph, nodes, [], node_of, classes, {})
        for v, d, op_index in self.lost:
            c = classes[v][d]
            if c >= 0:
                problem.losses.setdefault(node_of[v], []).append((c, v, op_index))
        wire(problem, self.role, self.updates)
        return problem
