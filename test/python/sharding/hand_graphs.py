"""Graphs built by hand, op by op, with the rules Shardy would give; random ones for property tests."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from rhino.machine.collectives import CommModel
from rhino.program import Argument, Graph, Op, Rule, Value
from rhino.program.fusion import absorbed
from rhino.sharding.carved import carved_seconds
from rhino.sharding.cones import build_problem
from rhino.sharding.costs import Costs, States
from rhino.sharding.landing import landings
from rhino.sharding.overlap import hidden_seconds
from rhino.sharding.paid import paid
from rhino.sharding.problem import LayoutTransfer
from rhino.sharding.recurring import feasible
from rhino.sharding.symmetry import tie_repeats, untied
from rhino.xla import BackEnd


class Builder:
    """Appends values and ops to a graph; values are known by their index."""

    def __init__(self) -> None:
        self.graph = Graph()

    def value(self, shape: tuple[int, ...], producer: int, dtype: str = "f32", loop: int = -1) -> int:
        self.graph.values.append(Value(len(self.graph.values), shape, dtype, producer, loop))
        return len(self.graph.values) - 1

    def argument(self, *shape: int, role: str = "other", dtype: str = "f32") -> int:
        v = self.value(shape, -1, dtype)
        self.graph.arguments.append(Argument(v, f"a{v}", role))
        return v

    def shape(self, v: int) -> tuple[int, ...]:
        return self.graph.values[v].shape

    def op(self, name: str, operands: Sequence[int], shape: tuple[int, ...], rule: Rule | None, flops: int = 0) -> int:
        index = len(self.graph.ops)
        result = self.value(shape, index)
        self.graph.ops.append(
            Op(index, f"stablehlo.{name}", tuple(operands), (result,), rule, flops, region_end=index + 1)
        )
        return result

    def dot(self, a: int, b: int) -> int:
        """A product of matrices (m, k) x (k, n)."""
        (m, k), (_, n) = self.shape(a), self.shape(b)
        rule = Rule((m, n, k), (((0,), (2,)), ((2,), (1,))), (((0,), (1,)),), reduction=(2,))
        return self.op("dot_general", (a, b), (m, n), rule, 2 * m * n * k)

    def same(self, name: str, *operands: int) -> int:
        """An element-wise op."""
        shape = self.shape(operands[0])
        dims = tuple((i,) for i in range(len(shape)))
        return self.op(name, operands, shape, Rule(shape, (dims,) * len(operands), (dims,)), 1)

    def transpose(self, a: int) -> int:
        m, n = self.shape(a)
        return self.op("transpose", (a,), (n, m), Rule((n, m), (((1,), (0,)),), (((0,), (1,)),)))

    def reduce(self, a: int, dim: int) -> int:
        """The sum over one dimension of a matrix."""
        shape = self.shape(a)
        kept = 1 - dim
        rule = Rule(shape, (((0,), (1,)), ()), (((kept,),),), reduction=(dim,))
        zero = self.constant()
        return self.op("reduce", (a, zero), (shape[kept],), rule, 1)

    def broadcast(self, a: int, shape: tuple[int, int], dim: int) -> int:
        """A vector along dimension `dim` of a matrix."""
        return self.op("broadcast_in_dim", (a,), shape, Rule(shape, (((dim,),),), (((0,), (1,)),)))

    def in_groups(self, a: int, rows: int) -> int:
        """A matrix with its rows in groups."""
        m, n = self.shape(a)
        shape = (m // rows, rows, n)
        return self.op("reshape", (a,), shape, Rule(shape, (((0, 1), (2,)),), (((0,), (1,), (2,)),)))

    def ungrouped(self, a: int) -> int:
        """The matrix again."""
        groups, rows, n = self.shape(a)
        rule = Rule((groups, rows, n), (((0,), (1,), (2,)),), (((0, 1), (2,)),))
        return self.op("reshape", (a,), (groups * rows, n), rule)

    def labelled(self, a: int) -> int:
        """The matrix with one element of each row changed by a scatter that XLA lets work on the sum."""
        m, n = self.shape(a)
        rule = Rule((m, n), (((0,), (1,)), ((0,), ()), ((0,),)), (((0,), (1,)),))
        places, parts = self.argument(m, 1, dtype="i32"), self.argument(m)
        scattered = self.op("scatter", (self.constant(m, n), places, parts), (m, n), rule)
        self.graph.ops[-1].tag = "add"
        return self.same("add", a, scattered)

    def constant(self, *shape: int) -> int:
        v = self.op("constant", (), shape, None)
        self.graph.ops[-1].tag = "splat"
        return v

    def finish(self, *outputs: int) -> Graph:
        self.graph.outputs = outputs
        return self.graph


@st.composite
def graphs(draw: st.DrawFn, lengths: Sequence[int] = (2, 7, 8, 8, 16)) -> Graph:
    """A small random program over matrices with sides of these lengths: some divide by 4, some do not."""
    build = Builder()
    sides = st.sampled_from(lengths)
    matrices = [build.argument(draw(sides), draw(sides)) for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(2, 6))):
        a = draw(st.sampled_from(matrices))
        kind = draw(st.sampled_from(("dot", "dot", "dot", "add", "tanh", "transpose", "scale", "label")))
        if kind == "dot":
            fits = [b for b in matrices if build.shape(b)[0] == build.shape(a)[1]]
            b = draw(st.sampled_from(fits)) if fits else build.argument(build.shape(a)[1], draw(sides))
            matrices.append(build.dot(a, b))
        elif kind == "add":
            b = draw(st.sampled_from([b for b in matrices if build.shape(b) == build.shape(a)]))
            matrices.append(build.same("add", a, b))
        elif kind == "tanh":
            matrices.append(build.same("tanh", a))
        elif kind == "transpose":
            matrices.append(build.transpose(a))
        elif kind == "label":
            matrices.append(build.labelled(a))
        else:
            dim = draw(st.integers(0, 1))
            scale = build.broadcast(build.reduce(a, dim), build.shape(a), 1 - dim)
            matrices.append(build.same("multiply", a, scale))
    made = [v for v in matrices if build.graph.values[v].producer >= 0]
    outputs = list(dict.fromkeys([matrices[-1], *draw(st.lists(st.sampled_from(made), max_size=2))]))
    for i, v in enumerate(outputs):
        # State that a step hands on: argument and result are one decision.
        fits = [a for a in build.graph.arguments if a.alias < 0 and build.shape(a.value) == build.shape(v)]
        if fits and draw(st.booleans()):
            draw(st.sampled_from(fits)).alias = i
    return build.finish(*outputs)


def given_states(draw: st.DrawFn, costs: Costs) -> dict[int, States]:
    """Shardings that a user fixed, for a few of the decisions: what makes a plan communicate."""
    every = choices(costs)
    some = draw(st.lists(st.integers(0, len(every) - 1), max_size=4, unique=True))
    return {k: draw(st.sampled_from(every[k])) for k in some}


def seconds_of(graph: Graph, per_flop: float) -> list[float]:
    """Compute times that depend on the op's shape alone, as the roofline's do."""
    return [per_flop * op.flops for op in graph.ops]


def costs_of(graph: Graph, comm: CommModel, seconds: Sequence[float], tie: bool = True, merge: bool = True) -> Costs:
    """The costs of a hand-made graph; `merge` is whether partial results are added before they are reduced."""
    problem = build_problem(graph, uneven=True)
    quotient = tie_repeats(problem) if tie else untied(problem)
    apart = {o: float(graph.values[graph.ops[o].results[0]].elements) for o in absorbed(graph)}
    # As if all were in loops.
    uses = (t for t, _ in quotient.transfers if t.kind == "use")
    carving = {t.index: (float(graph.values[t.value].elements), 1.0) for t in uses}
    back_end = BackEnd(sums_merge=merge, sums_leave_loops=merge)
    return Costs(problem, quotient, comm, seconds, back_end=back_end, apart=apart, carving=carving)


def between(costs: Costs, transfer: LayoutTransfer, states: Sequence[States]) -> float:
    """What one of the transfers that are tied costs: collectives, and copies of what is written apart or carved out."""
    ways = paid(costs, transfer, states)
    carved_s = sum(carved_seconds(costs, transfer, start, end) for _, _, start, end in ways)
    return sum(seconds for seconds, *_ in ways) + carved_s + landings(costs, transfer, states)


def total(costs: Costs, states: Sequence[States]) -> float:
    """The objective of the search, added up plainly."""
    quotient = costs.quotient
    nodes = sum(count * costs.node(k, states[k]) for k, count in enumerate(quotient.counts))
    moved = sum(count * between(costs, t, states) for t, count in quotient.transfers)
    hiding = costs.hiding
    computing = [count * costs.node_parts(k, states[k])[0] for k, count in enumerate(quotient.counts)]
    hidden = 0.0
    for w, window in enumerate(hiding.windows):
        beside = sum(seconds * hiding.shares.get(k, (1.0, 0.0, 0.0))[w] for k, seconds in enumerate(computing))
        tied = [(t, n) for t, n in quotient.transfers if t.index in costs.hideable and hiding.window_of(t.index) == w]
        hidden += hidden_seconds(beside, sum(n * found[0] for t, n in tied for found in paid(costs, t, states)), window)
    return nodes + moved - hidden


def choices(costs: Costs) -> list[list[States]]:
    """Every combination of states per axis that divides, for each class."""
    blank = (0,) * len(costs.sizes)
    return [feasible(costs, k, range(len(costs.sizes)), blank) for k in range(len(costs.quotient.counts))]


def least_total(costs: Costs, pinned: dict[int, States]) -> float:
    """The minimum of `total` over every plan there is, by eliminating one decision after the other.

    Exact and independent of the search: each transfer is a table over the states of the classes it joins.
    """
    every = [[pinned[k]] if k in pinned else found for k, found in enumerate(choices(costs))]
    tables: list[tuple[tuple[int, ...], np.ndarray]] = []
    for k, count in enumerate(costs.quotient.counts):
        tables.append(((k,), np.array([count * costs.node(k, s) for s in every[k]])))
    for transfer, count in costs.quotient.transfers:
        joined = tuple(dict.fromkeys(end.node for end in (*transfer.sources, *transfer.targets) if end.node >= 0))
        table = np.zeros([len(every[k]) for k in joined])
        states: list[States] = [()] * len(every)
        for at in np.ndindex(*table.shape):
            for k, i in zip(joined, at, strict=True):
                states[k] = every[k][i]
            table[at] = count * between(costs, transfer, states)
        tables.append((joined, table))
    left = set(range(len(every)))
    while left:
        reach = {k: {n for names, _ in tables if k in names for n in names} for k in left}
        k = min(left, key=lambda k: (prod(len(every[n]) for n in reach[k]), k))
        names = tuple(sorted(reach[k] - {k}))
        assume(prod(len(every[n]) for n in (*names, k)) <= 2_000_000)
        merged = np.zeros([len(every[n]) for n in (*names, k)])
        for joined, table in [t for t in tables if k in t[0]]:
            position = [(*names, k).index(n) for n in joined]
            order = sorted(range(len(joined)), key=position.__getitem__)
            shape = [len(every[n]) if n in joined else 1 for n in (*names, k)]
            merged = merged + table.transpose(order).reshape(shape)
        tables = [t for t in tables if k not in t[0]] + [(names, merged.min(axis=-1))]
        left.remove(k)
    return float(sum(table for _, table in tables))
