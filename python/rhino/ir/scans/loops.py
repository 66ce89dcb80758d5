"""Counted loops that read and write arrays at their counter: `lax.scan` and `fori_loop` as jax lowers them.

Owns the facts about one loop: trips, direction, which arrays are stacked along which dimension, and what reads them.
Decides nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from rhino.program.data import Graph, Op
from rhino.program.element_types import INTEGERS

READ, WRITE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"
LOOP = "stablehlo.while"
_INTEGERS = INTEGERS | {"i1"}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add, "stablehlo.subtract": np.subtract, "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative, "stablehlo.maximum": np.maximum, "stablehlo.minimum": np.minimum,
    "stablehlo.select": np.where, "stablehlo.and": np.bitwise_and, "stablehlo.or": np.bitwise_or,
    "stablehlo.convert": np.asarray, "stablehlo.reshape": np.asarray,
    "stablehlo.clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip
_COMPARE = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stack:
    """One array with a layer per trip along `dim`.

    `value` is the array before the loop and `result` what the loop makes of it, -1 if it is read without being carried.
    `position` is its place among what the loop carries, or -1. `accesses` are the operations that read and write it.
    """

    dim: int
    value: int
    result: int
    position: int
    written: bool
    accesses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """A loop of `trips` trips whose counter, carried at `counter`, starts at 0 and steps by 1.

    `reverse`: trip t has layer trips - 1 - t of its stacks. `fixed` are the positions carried unchanged, `idle` those
    of them that nothing reads. `counters` are those of other counters, which fori_loop carries beside that of the loop,
    with their start and step. `arithmetic` are the operations of its body that depend on nothing but the counter.
    """

    op: int
    trips: int
    counter: int
    reverse: bool
    stacks: tuple[Stack, ...]
    fixed: frozenset[int]
    idle: tuple[int, ...]
    counters: dict[int, tuple[int, int]]
    arithmetic: tuple[int, ...]


@dataclass(slots=True)
class Uses:
    """Who reads each value: operations, and the (operation, position) a region passes it to."""

    readers: Sequence[Sequence[int]]
    passed: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph) -> Uses:
        """The uses in a whole program."""
        uses = cls(graph.users())
        for op in graph.ops:
            if op.name == "stablehlo.optimization_barrier":
                continue
            for position, tie in enumerate(op.ties):
                for v in dict.fromkeys((tie[3],) if op.name == LOOP else tie[:-1]):
                    uses.passed.setdefault(v, []).append((op.index, position))
        return uses


def is_constant(graph: Graph, v: int) -> bool:
    """Whether a value is a constant operation's."""
    producer = graph.values[v].producer
    return producer >= 0 and graph.ops[producer].name == "stablehlo.constant"


def scalar(graph: Graph, ops: Sequence[Any], v: int) -> int | None:
    """The integer a value always is, None if it is none or unknown."""
    value = graph.values[v]
    if not is_constant(graph, v) or value.shape or value.dtype not in _INTEGERS:
        return None
    splat = ir.DenseElementsAttr(ops[value.producer].attributes["value"]).get_splat_value()
    return int(ir.IntegerAttr(splat).value)


def read_scan(graph: Graph, ops: Sequence[Any], uses: Uses, op: Op) -> Scan | str:
    """What a while loop is, or why it is not one that can be split."""
    counted = Counted.of(graph, ops, op)
    if isinstance(counted, str):
        return counted
    return _ScanReader(graph, ops, uses, op, counted).run()


@dataclass(frozen=True, slots=True)
class Counted:
    """A loop that runs `trips` times: its counter, carried at `position`, goes from 0 in steps of 1."""

    position: int
    trips: int

    @classmethod
    def of(cls, graph: Graph, ops: Sequence[Any], op: Op) -> Counted | str:
        """The counter of a loop that runs a known number of trips."""
        inside = [graph.ops[i] for i in range(op.index + 1, op.region_end) if graph.ops[i].parent == op.index]
        condition = ops[op.index].regions[0].blocks[0]
        *steps, end = [view.operation for view in condition.operations]
        compares = [i for i, step in enumerate(steps) if step.name == "stablehlo.compare"]
        constants = sum(step.name == "stablehlo.constant" for step in steps)
        if len(compares) != 1 or 1 + constants != len(steps) or end.operands[0] != steps[compares[0]].results[0]:
            return "its condition is more than a comparison of a counter"
        compare = inside[compares[0]]
        position = next((p for p, tie in enumerate(op.ties) if tie[1] == compare.operands[0]), -1)
        limit = scalar(graph, ops, compare.operands[1])
        if "LT" not in str(ops[compare.index].attributes["comparison_direction"]) or position < 0 or limit is None:
            return "its number of trips is not a constant"
        if _progress(graph, ops, op.ties[position]) != (0, 1):
            return "its counter does not run from 0 in steps of 1"
        return cls(position, limit)

    def values(self, graph: Graph, ops: Sequence[Any], op: Op) -> tuple[dict[int, tuple[int, int]], dict[int, Any]]:
        """The positions of all counters, with start and step, and what only depends on them: per value, by trip."""
        reader = _ScanReader(graph, ops, Uses([]), op, self)
        for o in reader.body:
            reader.follow(o)
        return reader.counters, reader.known


def _progress(graph: Graph, ops: Sequence[Any], tie: Sequence[int]) -> tuple[int, int] | None:
    """Start and step of what a loop carries, if it is a counter."""
    start, producer = scalar(graph, ops, tie[0]), graph.values[tie[3]].producer
    if start is None or producer < 0 or graph.ops[producer].name != "stablehlo.add":
        return None
    if tie[2] not in graph.ops[producer].operands:
        return None
    step = next((s for v in graph.ops[producer].operands if (s := scalar(graph, ops, v)) is not None), None)
    return None if step is None else (start, step)


class _ScanReader:
    """State of reading one loop."""

    def __init__(self, graph: Graph, ops: Sequence[Any], uses: Uses, op: Op, counted: Counted) -> None:
        self.graph, self.ops, self.uses, self.op, self.counted = graph, ops, uses, op, counted
        self.body = [graph.ops[i] for i in range(op.index + 1, op.region_end) if graph.ops[i].parent == op.index]
        progress = {position: _progress(graph, ops, tie) for position, tie in enumerate(op.ties)}
        self.counters = {position: counter for position, counter in progress.items() if counter is not None}
        # Per value that only depends on the counter, its value in every trip.
        trips = np.arange(counted.trips)
        self.known: dict[int, Any] = {
            op.ties[position][2]: start + step * trips for position, (start, step) in self.counters.items()
        }

    def run(self) -> Scan | str:
        graph, op, trips = self.graph, self.op, self.counted.trips
        arithmetic = [o.index for o in self.body if self.follow(o)]
        accesses = self.accesses()
        fixed = [position for position, tie in enumerate(op.ties) if tie[2] == tie[3]]
        idle = tuple(position for position in fixed if self.is_idle(position))
        outside = dict.fromkeys(graph.ops[access].operands[0] for access in accesses)
        stacks = [self.carried(position, accesses) for position in range(len(op.ties))]
        stacks += [self.captured(v, accesses) for v in outside if graph.values[v].loop != op.index]
        found = [stack for stack in stacks if stack is not None]
        if not found:
            return "it has no array with one layer per trip"
        reverse = sum(backward for backward, _ in found) * 2 > len(found)
        alike = tuple(stack for backward, stack in found if backward == reverse)
        position = self.counted.position
        others = {other: counter for other, counter in self.counters.items() if other != position}
        return Scan(op.index, trips, position, reverse, alike, frozenset(fixed), idle, others, tuple(arithmetic))

    def follow(self, o: Op) -> bool:
        """Compute a scalar that depends on the counter only; whether it does."""
        graph = self.graph
        if len(o.results) != 1 or not o.operands:
            return False
        result = graph.values[o.results[0]]
        if result.shape or result.dtype not in _INTEGERS:
            return False
        function = _ARITHMETIC.get(o.name)
        if o.name == "stablehlo.compare":
            direction = str(self.ops[o.index].attributes["comparison_direction"])
            function = next((f for name, f in _COMPARE.items() if name in direction), None)
        if function is None or not any(v in self.known for v in o.operands):
            return False
        operands = []
        for v in o.operands:
            at = self.known[v] if v in self.known else scalar(graph, self.ops, v)
            if at is None:
                return False
            operands.append(at)
        self.known[o.results[0]] = np.broadcast_to(function(*operands), (self.counted.trips,))
        return True

    def accesses(self) -> dict[int, tuple[int, bool]]:
        """The operations of the body that read or write a layer: its dimension, and whether the last comes first."""
        trips = self.counted.trips
        forward = np.arange(trips)
        found: dict[int, tuple[int, bool]] = {}
        direction: dict[int, bool | None] = {}
        for o in self.body:
            if o.name not in (READ, WRITE):
                continue
            first = 1 if o.name == READ else 2
            whole = self.graph.values[o.operands[0]].shape
            part = self.graph.values[o.results[0] if o.name == READ else o.operands[1]].shape
            for dim, index in enumerate(o.operands[first:]):
                if index not in self.known or whole[dim] != trips or part[dim] != 1:
                    continue
                if index not in direction:
                    layers = self.known[index]
                    same, turned = np.array_equal(layers, forward), np.array_equal(layers, forward[::-1])
                    direction[index] = None if not (same or turned) else bool(turned)
                reverse = direction[index]
                if reverse is not None:
                    found[o.index] = (dim, reverse)
                    break
        return found

    def is_idle(self, position: int) -> bool:
        """Whether nothing reads what is carried at a position."""
        _, condition, argument, _, _ = self.op.ties[position]
        readers, passed = self.uses.readers, self.uses.passed
        return not readers[condition] and not readers[argument] and len(passed[argument]) == 1

    def carried(self, position: int, accesses: dict[int, tuple[int, bool]]) -> tuple[bool, Stack] | None:
        """What is carried at a position, if it is a stack, and whether the last layer comes first."""
        value, condition, argument, end, result = self.op.ties[position]
        readers, passed = self.uses.readers, self.uses.passed
        if readers[condition]:
            return None
        chain, seen = [argument], dict[int, tuple[int, bool]]()
        for v in chain:  # grows
            if any(place != (self.op.index, position) for place in passed.get(v, ())):
                return None
            for reader in readers[v]:
                o = self.graph.ops[reader]
                if reader not in accesses or o.operands.count(v) != 1 or o.operands[0] != v:
                    return None
                seen[reader] = accesses[reader]
                if o.name == WRITE:
                    chain.append(o.results[0])
        if end not in chain or len(set(seen.values())) != 1:
            return None
        dim, reverse = next(iter(seen.values()))
        return reverse, Stack(dim, value, result, position, end != argument, tuple(seen))

    def captured(self, v: int, accesses: dict[int, tuple[int, bool]]) -> tuple[bool, Stack] | None:
        """An array from outside, if it is read as a stack only, and whether the last layer comes first."""
        inside = range(self.op.index, self.op.region_end)
        if any(region in inside for region, _ in self.uses.passed.get(v, ())):
            return None
        seen: dict[int, tuple[int, bool]] = {}
        for reader in self.uses.readers[v]:
            if reader == self.op.index or reader not in inside:
                continue
            o = self.graph.ops[reader]
            if reader not in accesses or o.name != READ or o.operands.count(v) != 1:
                return None
            seen[reader] = accesses[reader]
        if len(set(seen.values())) != 1:
            return None
        dim, reverse = next(iter(seen.values()))
        return reverse, Stack(dim, v, -1, -1, False, tuple(seen))
