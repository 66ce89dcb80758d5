"""Graph -> sharding problem: which decisions there are, and which tensors travel between them.

Cheap ops joined by shared dimensions form one *cone* with a single decision; dots, convolutions, gathers and the like
decide for themselves. Owns that decomposition (2-search section 2); knows no mesh and no costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from rhino.graph.data import Graph, Op, Rule
from rhino.graph.fusion import is_invariant

REPLICATED = -1
PARTIAL = -2

# Ops whose factors contract or index: each gets a decision of its own.
_HEAVY = frozenset(
    f"stablehlo.{name}"
    for name in (
        "dot_general", "dot", "convolution", "gather", "scatter", "sort", "reduce_window", "select_and_scatter",
        "fft", "cholesky", "triangular_solve", "dynamic_gather",
    )
) | {"sdy.sharding_constraint", "sdy.reshard"}  # fmt: skip
_SOURCES = ("stablehlo.constant", "stablehlo.iota")


@dataclass(slots=True)
class Node:
    """One decision. State 0 is "replicated"; state k > 0 shards class k-1 of a cone, or factor `factors[k-1]` of an op.

    `limits[k-1]` is the size that the shards of state k must divide.
    """

    index: int
    kind: str
    ops: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    factors: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()

    @property
    def states(self) -> int:
        return 1 + len(self.limits)


@dataclass(slots=True, frozen=True)
class End:
    """One side of a transfer: in state k of `node` the value is in `view[k]`: a sharded dim, REPLICATED or PARTIAL.

    `slot` is the operand's position when the node is an op that reads it.
    """

    node: int
    view: tuple[int, ...]
    slot: int = field(default=-1, compare=False)


@dataclass(slots=True)
class Transfer:
    """A value that passes from the layout its producer leaves it in to the one its consumers need.

    Either side may have several ends, the other then has one. A conversion between two given layouts is paid once for
    all consumers that agree (XLA reshards a value once), and once for partial results that are summed anyway.
    """

    index: int
    value: int
    kind: str
    trips: int
    sources: list[End]
    targets: list[End]
    op: int = -1


@dataclass(slots=True)
class Problem:
    """All decisions and transfers.

    `node_of[v]` is the cone of value v, or -1 when any layout is free; `classes[v]` the classes of its dims, -1 for a
    dim no state shards. `losses[n]` lists (class, value, op) where an op inside cone n cannot keep a sharded dim.
    `free_reads[v]` are ends whose layout a free value takes: the heavy and element-wise ops that read it.
    """

    graph: Graph
    nodes: list[Node]
    transfers: list[Transfer]
    node_of: list[int]
    classes: list[tuple[int, ...]]
    losses: dict[int, list[tuple[int, int, int]]]
    free_reads: dict[int, list[End]] = field(default_factory=dict)

    def view(self, value: int) -> tuple[int, ...]:
        """Per state of the value's cone, the dimension of `value` that is sharded."""
        classes = self.classes[value]
        node = self.nodes[self.node_of[value]]
        return (REPLICATED, *[classes.index(c) if c in classes else REPLICATED for c in range(node.states - 1)])


class _UnionFind:
    def __init__(self, size: int) -> None:
        self.parent = list(range(size))

    def find(self, x: int) -> int:
        parent = self.parent
        while parent[x] != x:
            parent[x] = parent[parent[x]]
            x = parent[x]
        return x

    def join(self, a: int, b: int) -> int:
        a, b = self.find(a), self.find(b)
        # The smaller index stays root: the result depends on program order only.
        if a > b:
            a, b = b, a
        self.parent[b] = a
        return a


def leading(rule: Rule, dim: tuple[int, ...]) -> int:
    """The factor a dimension is sharded by first: its major-most one of size over 1; -1 if there is none."""
    for f in dim:
        if rule.factor_sizes[f] > 1:
            return f
    return -1


def build_problem(graph: Graph) -> Problem:
    """Decomposes a program in time linear in its ops.

    Args:
      graph: the program, calls inlined.
    """
    return _Builder(graph).build()


class _Builder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.free = self._free_values()
        self.groups = _UnionFind(len(graph.values))
        self.offsets: list[int] = []
        total = 0
        for value in graph.values:
            self.offsets.append(total)
            total += len(value.shape)
        self.dims = _UnionFind(total)
        self.limits = [s for value in graph.values for s in value.shape]
        self.role = ["" for _ in graph.ops]
        self.lost: list[tuple[int, int, int]] = []

    def _free_values(self) -> list[bool]:
        """Values that cost nothing in any layout: constants, iotas, and what is made of them and scalars alone."""
        graph = self.graph
        values = graph.values
        free = [False] * len(values)
        for op in graph.ops:
            if op.name in _SOURCES:
                free[op.results[0]] = True
            elif op.rule is not None and op.name not in _HEAVY and op.operands and len(op.results) == 1:
                free[op.results[0]] = values[op.results[0]].shape != () and all(
                    free[v] or not values[v].shape for v in op.operands
                )
            for tie in op.ties:
                # What a loop changes does not stay free; what it only carries does.
                kept = free[tie[0]] and is_invariant(op, tie)
                for v in tie:
                    free[v] = kept
        return free

    def build(self) -> Problem:
        graph = self.graph
        for op in graph.ops:
            self.role[op.index] = role = self._role(op)
            if role == "merge":
                self._merge(op)
            for tie in op.ties:
                self._tie(tie)
        for argument in graph.arguments:
            if argument.alias >= 0:
                self._tie((argument.value, graph.outputs[argument.alias]))
        return self._number()

    def _role(self, op: Op) -> str:
        values = self.graph.values
        if op.ties or op.name in _SOURCES:
            return "none"
        if op.name in _HEAVY or op.rule is None:
            return "heavy"
        if op.name == "stablehlo.reduce":
            return "reduce"
        if op.rule.reduction:
            return "heavy"
        if op.name == "stablehlo.broadcast_in_dim" and values[op.operands[0]].elements < values[op.results[0]].elements:
            return "broadcast"
        return "merge"

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

    def _tensors(self, op: Op) -> list[tuple[int, tuple[tuple[int, ...], ...]]]:
        assert op.rule is not None
        pairs = [*zip(op.operands, op.rule.operands, strict=True), *zip(op.results, op.rule.results, strict=True)]
        return [(v, m) for v, m in pairs if not self.free[v] and m]

    def _merge(self, op: Op) -> None:
        rule = op.rule
        assert rule is not None
        fixed = (*rule.replicate, *rule.permutation)
        tensors = self._tensors(op)
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
        _Wiring(self, problem).run()
        return problem


class _Wiring:
    """Second half of the builder: nodes for heavy ops, and the transfers."""

    def __init__(self, builder: _Builder, problem: Problem) -> None:
        self.role = builder.role
        self.problem = problem
        self.graph = builder.graph
        self.uses: dict[tuple[int, int], Transfer] = {}
        self.sums: dict[int, Transfer] = {}
        self.users = builder.graph.users()
        self.returned = frozenset(builder.graph.outputs)
        self.roots: dict[int, int] = {}

    def run(self) -> None:
        problem, graph = self.problem, self.graph
        for op in graph.ops:
            role = self.role[op.index]
            self._free(op)
            if role == "heavy":
                self._heavy(op)
            elif role == "reduce":
                self._reduce(op)
            elif role == "broadcast":
                self._broadcast(op)
            elif role == "merge" and problem.node_of[op.results[0]] >= 0:
                problem.nodes[problem.node_of[op.results[0]]].ops.append(op.index)

    def _free(self, op: Op) -> None:
        """Free values follow the element-wise op that reads them, into loops too."""
        problem, values = self.problem, self.graph.values
        if self.role[op.index] == "merge":
            r = op.results[0]
            for v in op.operands:
                if problem.node_of[v] < 0 <= problem.node_of[r] and values[v].shape == values[r].shape:
                    problem.free_reads.setdefault(v, []).append(End(problem.node_of[r], problem.view(r)))
        for tie in op.ties:
            if problem.node_of[tie[0]] < 0 and values[tie[0]].shape:
                shared = problem.free_reads.setdefault(tie[0], [])
                for v in tie[1:]:
                    problem.free_reads[v] = shared

    def _heavy(self, op: Op) -> None:
        problem = self.problem
        factors = _valid_factors(op)
        sizes = op.rule.factor_sizes if op.rule else ()
        node = Node(len(problem.nodes), "op", [op.index], [], factors, tuple(sizes[f] for f in factors))
        problem.nodes.append(node)
        for k, v in enumerate(op.operands):
            mapping = op.rule.operands[k] if op.rule else ()
            end = End(node.index, _factor_view(op.rule, mapping, factors, False), k)
            if problem.node_of[v] >= 0:
                self._use(v, end, op)
            elif mapping:
                problem.free_reads.setdefault(v, []).append(end)
        for k, v in enumerate(op.results):
            mapping = op.rule.results[k] if op.rule else ()
            self._define(v, End(node.index, _factor_view(op.rule, mapping, factors, True)), op)

    def _reduce(self, op: Op) -> None:
        """A reduction runs in its (first) operand's layout; the result is partial where a reduced dim was sharded."""
        problem, rule = self.problem, op.rule
        assert rule is not None
        source = next((k for k, v in enumerate(op.operands) if problem.node_of[v] >= 0), None)
        if source is None:
            return
        v = op.operands[source]
        node = problem.nodes[problem.node_of[v]]
        node.ops.append(op.index)
        for k, other in enumerate(op.operands):
            if k != source and problem.node_of[other] >= 0 and problem.node_of[other] != node.index:
                self._use(other, End(node.index, problem.view(v)), op)
        for k, r in enumerate(op.results):
            view = []
            for d in problem.view(v):
                f = leading(rule, rule.operands[source][d]) if d >= 0 else -1
                at = [i for i, dim in enumerate(rule.results[k]) if f >= 0 and leading(rule, dim) == f]
                view.append(at[0] if at else PARTIAL if d >= 0 else REPLICATED)
            self._define(r, End(node.index, tuple(view)), op)

    def _broadcast(self, op: Op) -> None:
        """A broadcast runs in its result's layout; its small operand is converted to what that needs."""
        problem, rule = self.problem, op.rule
        assert rule is not None
        v, r = op.operands[0], op.results[0]
        if problem.node_of[r] < 0:
            return
        node = problem.nodes[problem.node_of[r]]
        node.ops.append(op.index)
        if problem.node_of[v] < 0:
            return
        view = []
        for d in problem.view(r):
            f = leading(rule, rule.results[0][d]) if d >= 0 else -1
            at = [i for i, dim in enumerate(rule.operands[0]) if f >= 0 and leading(rule, dim) == f]
            view.append(at[0] if at else REPLICATED)
        self._use(v, End(node.index, tuple(view)), op)

    def _use(self, v: int, end: End, op: Op) -> None:
        problem = self.problem
        key = (v, op.parent)
        transfer = self.uses.get(key)
        if transfer is None:
            source = End(problem.node_of[v], problem.view(v))
            transfer = Transfer(len(problem.transfers), v, "use", op.trips, [source], [], op.index)
            self.uses[key] = transfer
            problem.transfers.append(transfer)
        transfer.targets.append(end)

    def _define(self, v: int, end: End, op: Op) -> None:
        problem = self.problem
        root = self._sum_root(v)
        transfer = self.sums.get(root)
        if transfer is None:
            n = problem.node_of[v]
            target = End(n, problem.view(v)) if n >= 0 else End(-1, (REPLICATED,))
            transfer = Transfer(len(problem.transfers), v, "define", op.trips, [], [target], op.index)
            self.sums[root] = transfer
            problem.transfers.append(transfer)
        transfer.sources.append(end)

    def _sum_root(self, v: int) -> int:
        """The sum a partial result ends in: XLA adds partial tensors first and reduces them together."""
        ops = self.graph.ops
        path = []
        while v not in self.roots and len(self.users[v]) == 1 and ops[self.users[v][0]].name == "stablehlo.add":
            op = ops[self.users[v][0]]
            if op.operands[0] == op.operands[1] or v in self.returned:
                break
            path.append(v)
            v = op.results[0]
        root = self.roots.get(v, v)
        for step in path:
            self.roots[step] = root
        return root


def _valid_factors(op: Op) -> tuple[int, ...]:
    """Factors an axis may shard: no replication or permutation, and major-most wherever they appear."""
    rule = op.rule
    if rule is None:
        return ()
    chosen = []
    for f, size in enumerate(rule.factor_sizes):
        if size <= 1 or f in rule.replicate or f in rule.permutation:
            continue
        places = [dim for m in (*rule.operands, *rule.results) for dim in m if f in dim]
        if places and all(leading(rule, dim) == f for dim in places):
            chosen.append(f)
    return tuple(chosen)


def _factor_view(
    rule: Rule | None, mapping: tuple[tuple[int, ...], ...], factors: tuple[int, ...], result: bool
) -> tuple[int, ...]:
    view = [REPLICATED]
    for f in factors:
        assert rule is not None
        at = [d for d, dim in enumerate(mapping) if f in dim]
        view.append(at[0] if at else PARTIAL if result and f in rule.reduction else REPLICATED)
    return tuple(view)
