"""The step's own loop over micro-batches: recognising it, and what it carries.

Owns the facts about such a loop, or why one that looks like it is none. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from rhino.ir.scans.loops import LOOP, READ, WRITE, Counted, is_constant, scalar
from rhino.program.data import Graph, Op
from rhino.program.operations import COMBINERS, CONTRACTIONS

_SPREAD = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")
# What a loop that is most of the step's work has of it: the optimizer of a small model takes some, too.
_MOST = 0.5


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A loop over micro-batches; positions are those among what it carries.

    Attributes:
      op, trips, counter: the loop, how often it runs, and the position of its counter, which starts at 0.
      counters: start and step of the other counters. `fixed`: what is carried unchanged.
      sums: what is added up (or multiplied, ..), and how. `stacks`: what each trip writes a row of.
      decays: running means, s = c * s + x with an x that does not need s, and their c.
      ahead: what only depends on itself and the counter, such as keys that are split in every trip.
      runs: operations of the body that read runs of examples: their dimension, and how many these are.
    """

    op: int
    trips: int
    counter: int
    counters: dict[int, tuple[int, int]]
    fixed: frozenset[int]
    sums: dict[int, str]
    decays: dict[int, float]
    stacks: frozenset[int]
    ahead: tuple[int, ...]
    runs: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class NoAccumulation:
    """A loop over parts of the batch that is none over micro-batches: `carry` is what stands in the way."""

    op: int
    message: str
    remedy: str


def read_accumulation(graph: Graph, ops: Sequence[Any]) -> Accumulation | NoAccumulation | None:
    """The loop of @main that runs over the batch in parts and is most of the step; None if there is none."""
    data, batch = _data(graph)
    total = sum(op.flops * op.trips for op in graph.ops)
    for op in graph.ops:
        if op.parent >= 0 or op.name != LOOP:
            continue
        inside = sum(o.flops * o.trips for o in graph.ops[op.index : op.region_end])
        counted = Counted.of(graph, ops, op)
        if isinstance(counted, str) or counted.trips < 2 or inside < _MOST * total:
            continue
        reader = _AccumulationReader(graph, ops, op, counted)
        if reader.reads_parts(data & batch) and not _work_outside(graph, op, batch):
            return reader.run()
    return None


def _data(graph: Graph) -> tuple[set[int], set[int]]:
    """Values of @main made of the batch and constants alone, and those that depend on the batch."""
    data, batch = set[int](), set[int]()
    for argument in graph.arguments:
        if argument.role == "batch":
            data.add(argument.value)
            batch.add(argument.value)
        elif argument.role != "param" and not graph.values[argument.value].shape:
            data.add(argument.value)
    for op in graph.ops:
        if op.parent >= 0 or op.name == LOOP:
            continue
        if all(v in data for v in op.operands):
            data.update(op.results)
        if any(v in batch for v in op.operands):
            batch.update(op.results)
    return data, batch


def _work_outside(graph: Graph, loop: Op, batch: set[int]) -> bool:
    """Whether examples are also worked on outside the loop, and not only prepared for it."""
    return any(
        op.parent < 0 and op.index != loop.index and (op.name in CONTRACTIONS or op.name == LOOP)
        for op in graph.ops
        if any(v in batch for v in op.operands)
    )


class _AccumulationReader:
    """State of reading one loop."""

    def __init__(self, graph: Graph, ops: Sequence[Any], op: Op, counted: Counted) -> None:
        self.graph, self.ops, self.op, self.counted = graph, ops, op, counted
        self.body = [graph.ops[i] for i in range(op.index + 1, op.region_end) if graph.ops[i].parent == op.index]
        self.counters, self.known = counted.values(graph, ops, op)
        self.fixed = frozenset(i for i, tie in enumerate(op.ties) if tie[2] == tie[3])
        self.outer = {tie[2]: tie[0] for i, tie in enumerate(op.ties) if i in self.fixed}
        self.readers: dict[int, list[Op]] = {}
        for o in graph.ops[op.index + 1 : op.region_end]:
            for v in dict.fromkeys((*o.operands, *(t for tie in o.ties for t in tie[:-1]))):
                self.readers.setdefault(v, []).append(o)
        self.yielded: dict[int, int] = {}
        for tie in op.ties:
            self.yielded[tie[3]] = self.yielded.get(tie[3], 0) + 1

    def reads_parts(self, data: set[int]) -> bool:
        """Whether the body takes part t of the data in trip t."""
        return any(o.name == READ and self.outside(o.operands[0]) in data and self.part(o) for o in self.body)

    def outside(self, v: int) -> int:
        return self.outer.get(v, v)

    def part(self, o: Op) -> tuple[int, int] | None:
        """The dimension of which a slice is run t in trip t, of `trips` runs, and their length."""
        whole, part = self.graph.values[o.operands[0]].shape, self.graph.values[o.results[0]].shape
        found = None
        for dim, start in enumerate(o.operands[1:]):
            if start in self.known:
                runs = np.array_equal(self.known[start], part[dim] * np.arange(self.counted.trips))
                if found is not None or not runs or whole[dim] != part[dim] * self.counted.trips:
                    return None
                found = (dim, part[dim])
            elif scalar(self.graph, self.ops, start) != 0 and whole[dim] != part[dim]:
                return None
        return found

    def run(self) -> Accumulation | NoAccumulation:
        sums: dict[int, str] = {}
        decays: dict[int, float] = {}
        stacks: set[int] = set()
        rest: list[int] = []
        for position, tie in enumerate(self.op.ties):
            if position in self.fixed or position in self.counters:
                continue
            kind = self.sum(tie)
            if kind:
                sums[position] = kind
            elif self.is_stack(tie):
                stacks.add(position)
            elif (factor := self.decay(tie)) is not None:
                decays[position] = factor
            else:
                rest.append(position)
        others = {p: c for p, c in self.counters.items() if p != self.counted.position}
        barred = {self.op.ties[p][2] for p in (*sums, *decays, *stacks)}
        ahead = self.ahead(rest, barred)
        if ahead is None:
            return self.refusal(rest[0])
        runs = {o.index: found for o in self.body if o.name == READ and (found := self.part(o)) and found[1] > 1}
        return Accumulation(
            self.op.index, self.counted.trips, self.counted.position, others, self.fixed - set(others), sums, decays,
            frozenset(stacks), ahead, runs,
        )  # fmt: skip

    def refusal(self, position: int) -> NoAccumulation:
        value = self.graph.values[self.op.ties[position][2]]
        kind = "x".join([*map(str, value.shape), value.dtype])
        return NoAccumulation(
            self.op.index,
            f"this loop over {self.counted.trips} parts of the batch cannot be the micro-batches of a pipeline: value "
            f"{position} that it carries, a tensor<{kind}>, is not a sum over the parts, nor a running mean s = c * s "
            "+ x with a constant c: each needs that of the part before",
            "carry sums only and update the parameters once, after the loop; or leave the loop to Python, with a step "
            "of one update",
        )

    def sum(self, tie: Sequence[int]) -> str:
        """How something carried is accumulated, if each trip only adds to it: add, maximum, .."""
        _, condition, at, end, _ = tie
        kind = ""
        if condition in self.readers or self.yielded.get(at):
            return ""
        while at != end or not kind:
            readers = self.readers.get(at, [])
            if len(readers) != 1 or self.yielded.get(at) or readers[0].parent != self.op.index:
                return ""
            o = readers[0]
            name = COMBINERS.get(o.name, "")
            if not name or kind not in ("", name) or o.operands.count(at) != 1:
                return ""
            kind, at = name, o.results[0]
        return kind if self.yielded[end] == 1 and end not in self.readers else ""

    def decay(self, tie: Sequence[int]) -> float | None:
        """The factor of a running mean, which each trip multiplies by it and adds to; None for anything else."""
        _, condition, at, end, _ = tie
        factor = None
        for name in ("stablehlo.multiply", "stablehlo.add"):
            readers = self.readers.get(at, [])
            if condition in self.readers or self.yielded.get(at) or len(readers) != 1:
                return None
            o = readers[0]
            if o.name != name or o.parent != self.op.index or o.operands.count(at) != 1:
                return None
            if factor is None and (factor := self.number(o.operands[int(o.operands[0] == at)])) is None:
                return None
            at = o.results[0]
        return factor if at == end and self.yielded[end] == 1 and end not in self.readers else None

    def number(self, v: int) -> float | None:
        """The number that all elements of a value are, if it is a constant one."""
        while (made := self.graph.values[v := self.outside(v)].producer) >= 0 and self.graph.ops[made].name in _SPREAD:
            v = self.graph.ops[made].operands[0]
        if not is_constant(self.graph, v):
            return None
        value = ir.DenseElementsAttr(self.ops[made].attributes["value"])
        return float(value.get_splat_value().value) if value.is_splat and _is_float(value) else None

    def is_stack(self, tie: Sequence[int]) -> bool:
        """Whether each trip only writes its row of something carried, and so all of it is written."""
        _, condition, at, end, _ = tie
        readers = self.readers.get(at, [])
        if condition in self.readers or self.yielded.get(at) or len(readers) != 1 or end in self.readers:
            return False
        o = readers[0]
        if o.name != WRITE or o.results[0] != end or o.operands[0] != at or o.operands.count(at) != 1:
            return False
        whole, part = self.graph.values[at].shape, self.graph.values[o.operands[1]].shape
        dims = [dim for dim, start in enumerate(o.operands[2:]) if start in self.known]
        same = all(whole[d] == part[d] for d in range(len(whole)) if d not in dims)
        if len(dims) != 1 or not same or whole[dims[0]] != self.counted.trips or part[dims[0]] != 1:
            return False
        return np.array_equal(self.known[o.operands[2 + dims[0]]], np.arange(self.counted.trips))

    def ahead(self, rest: Sequence[int], barred: set[int]) -> tuple[int, ...] | None:
        """`rest`, if it can be computed before the examples: of itself, counters and what is cheap; None if not."""
        graph, op = self.graph, self.op
        own = {tie[2] for tie in op.ties}
        pending, seen = [op.ties[p][3] for p in rest], set[int]()
        params = {a.value for a in graph.arguments if a.role == "param"}
        while pending:
            v = pending.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in barred or self.outside(v) in params:
                return None
            producer = graph.values[v].producer
            if v in own or producer <= op.index or producer >= op.region_end or is_constant(graph, v):
                continue
            o = graph.ops[producer]
            if o.parent != op.index or o.name in CONTRACTIONS or o.name == "stablehlo.custom_call":
                return None
            for inner in graph.ops[o.index : max(o.index + 1, o.region_end)]:
                pending += [u for u in inner.operands if graph.values[u].producer < o.index or u in own]
        return tuple(rest)


def _is_float(value: Any) -> bool:
    return isinstance(ir.ShapedType(value.type).element_type, ir.F32Type | ir.F64Type | ir.BF16Type | ir.F16Type)
