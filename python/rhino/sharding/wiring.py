"""Between cones: a node for each op that decides for itself, and a transfer for each value that changes hands.

Owns which ends a value has and what they see of it. Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.program.data import Op, Rule
from rhino.sharding.problem import PARTIAL, REPLICATED, End, LayoutTransfer, Node, Problem, leading
from rhino.sharding.updates import Update

# What may lie between a partial sum and the value that a loop carries. XLA: converted-sums-leave-loops
_ON_THE_WAY = ("stablehlo.add", "stablehlo.convert", "stablehlo.transpose", "stablehlo.reshape")


def wire(problem: Problem, roles: Sequence[str], updates: Sequence[Update] = ()) -> None:
    """Add a node per heavy op, and every transfer. `roles[o]` is merge, heavy, reduce, pull or none.

    Args:
      updates: those with a cone of their own.
    """
    _Wiring(problem, roles, updates).run()


class _Wiring:
    def __init__(self, problem: Problem, roles: Sequence[str], updates: Sequence[Update]) -> None:
        self.role, self.updates = roles, updates
        self.apart: dict[int, list[int]] = {}
        for o, slot in (read for update in updates for read in update.reads):
            self.apart.setdefault(o, []).append(slot)
        self.problem = problem
        self.graph = problem.graph
        self.uses: dict[tuple[int, int], LayoutTransfer] = {}
        self.sums: dict[int, LayoutTransfer] = {}
        self.users = problem.graph.users()
        self.returned = frozenset(problem.graph.outputs)
        self.roots: dict[int, int] = {}
        self.partial = self._sums()

    def run(self) -> None:
        problem, graph = self.problem, self.graph
        for op in graph.ops:
            role = self.role[op.index]
            self._free(op)
            if role == "heavy":
                self._heavy(op)
            elif role == "reduce":
                self._reduce(op)
            elif role == "pull":
                self._pull(op)
            elif role == "merge" and problem.node_of[op.results[0]] >= 0:
                n = problem.node_of[op.results[0]]
                problem.nodes[n].ops.append(op.index)
                for slot in self.apart.get(op.index, ()):
                    self._use(op.operands[slot], End(n, self._seen(op, slot), op.index, slot), op)
        for update in self.updates:
            self._return(update)

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
            end = End(node.index, factor_view(op.rule, mapping, factors, False), op.index, k)
            if problem.node_of[v] >= 0:
                self._use(v, end, op)
            elif mapping:
                problem.free_reads.setdefault(v, []).append(end)
        for k, v in enumerate(op.results):
            unread = op.kernel is not None and not self.users[v] and v not in self.returned
            if unread or not self.graph.values[v].elements:
                continue  # a kernel's workspace, say: there is nothing to send
            mapping = op.rule.results[k] if op.rule else ()
            self._define(v, End(node.index, factor_view(op.rule, mapping, factors, True), op.index, value=v), op)

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
                self._use(other, End(node.index, problem.view(v), op.index, k), op)
        for k, r in enumerate(op.results):
            view = []
            for d in problem.view(v):
                f = leading(rule, rule.operands[source][d]) if d >= 0 else -1
                at = [i for i, dim in enumerate(rule.results[k]) if f >= 0 and leading(rule, dim) == f]
                view.append(at[0] if at else PARTIAL if d >= 0 else REPLICATED)
            self._define(r, End(node.index, tuple(view), op.index, value=r), op)

    def _pull(self, op: Op) -> None:
        """A broadcast or the like runs in its result's layout; its operand is converted to what that needs."""
        problem = self.problem
        v, r = op.operands[0], op.results[0]
        if problem.node_of[r] < 0:
            return
        node = problem.nodes[problem.node_of[r]]
        node.ops.append(op.index)
        if problem.node_of[v] < 0:
            return
        self._use(v, End(node.index, self._seen(op, 0), op.index, 0), op)

    def _seen(self, op: Op, slot: int) -> tuple[int, ...]:
        """Per state of the cone of an op's result, the dimension of an operand that the op then wants split."""
        rule, view = op.rule, []
        assert rule is not None
        for d in self.problem.view(op.results[0]):
            f = leading(rule, rule.results[0][d]) if d >= 0 else -1
            at = [i for i, dim in enumerate(rule.operands[slot]) if f >= 0 and leading(rule, dim) == f]
            view.append(at[0] if at else REPLICATED)
        return tuple(view)

    def _return(self, update: Update) -> None:
        """A parameter's next value is made where its update is, and returned as the parameter is kept."""
        problem, p, v = self.problem, update.parameter, update.result
        source, target = (End(problem.node_of[u], problem.view(u)) for u in (v, p))
        o = self.graph.values[v].producer
        problem.transfers.append(LayoutTransfer(len(problem.transfers), v, "return", 1, [source], [target], o, 1))
        problem.returned[v] = p

    def _use(self, v: int, end: End, op: Op) -> None:
        problem = self.problem
        key = (v, op.parent)
        transfer = self.uses.get(key)
        if transfer is None:
            source = End(problem.node_of[v], problem.view(v))
            transfer = LayoutTransfer(len(problem.transfers), v, "use", op.trips, [source], [], op.index, op.trips)
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
            late = self._late(root, op.trips)
            transfer = LayoutTransfer(len(problem.transfers), v, "define", op.trips, [], [target], op.index, late)
            self.sums[root] = transfer
            problem.transfers.append(transfer)
        transfer.sources.append(end)

    def _late(self, v: int, trips: int) -> int:
        """How often a sum is reduced if that waits until its loop is over: once, where the loop only adds to it."""
        ops, users = self.graph.ops, self.users
        while len(users[v]) == 1 and ops[users[v][0]].name in _ON_THE_WAY:
            v = ops[users[v][0]].results[0]
        o = self.graph.values[v].producer
        loop = ops[ops[o].parent] if o >= 0 and ops[o].parent >= 0 else None
        if loop is None or loop.name != "stablehlo.while" or ops[o].name != "stablehlo.add" or users[v]:
            return trips
        for _, tested, carried, yielded, _ in loop.ties:
            if yielded == v and carried in ops[o].operands and users[carried] == [o] and not users[tested]:
                return trips // max(1, loop.iterations)
        return trips

    def _sums(self) -> list[bool]:
        """For each value whether it can be partial: an op that sums leaves it, or it adds up only such values."""
        found = [False] * len(self.graph.values)
        for op in self.graph.ops:
            role = self.role[op.index]
            if op.name == "stablehlo.add" and role == "merge":
                sums = all(found[v] for v in op.operands)
            else:
                sums = role == "reduce" or (role == "heavy" and op.rule is not None and bool(op.rule.reduction))
            for v in op.results:
                found[v] = sums
        return found

    def _sum_root(self, v: int) -> int:
        """The sum a partial result ends in. `XLA: sums-merge, whole-is-not-merged`."""
        ops = self.graph.ops
        path = []
        while v not in self.roots and len(self.users[v]) == 1 and ops[self.users[v][0]].name == "stablehlo.add":
            op = ops[self.users[v][0]]
            if op.operands[0] == op.operands[1] or v in self.returned or not all(self.partial[u] for u in op.operands):
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
    if op.manual is not None:
        given = [f for _, f in op.manual.taken if f >= 0 and f not in op.manual.free]
        return tuple(f for f in (*given, *op.manual.free) if rule.factor_sizes[f] > 1)
    chosen = []
    for f, size in enumerate(rule.factor_sizes):
        if size <= 1 or f in rule.replicate or f in rule.permutation:
            continue
        places = [dim for m in (*rule.operands, *rule.results) for dim in m if f in dim]
        # Local sums are on an axis of their own: what is behind them in a dimension comes first on others.
        outer = () if f == op.local else (op.local,)
        if places and all(leading(rule, tuple(g for g in dim if g not in outer)) == f for dim in places):
            chosen.append(f)
    return tuple(chosen)


def factor_view(
    rule: Rule | None, mapping: tuple[tuple[int, ...], ...], factors: tuple[int, ...], result: bool
) -> tuple[int, ...]:
    """Per state of an op's node, where a value with these factors is: a dimension, REPLICATED or (results) PARTIAL."""
    view = [REPLICATED]
    for f in factors:
        assert rule is not None
        at = [d for d, dim in enumerate(mapping) if f in dim]
        view.append(at[0] if at else PARTIAL if result and f in rule.reduction else REPLICATED)
    return tuple(view)
