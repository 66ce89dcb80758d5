"""Stacks of layers that a loop reads, laid out anew for the gathers of what it reads, or makes of it.

Owns which stacks those are under a plan, and from when to when XLA keeps the second one. `XLA: stacks-laid-out-anew`.
Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_elementwise
from rhino.program.fusion import is_invariant
from rhino.program.orders import copied_stacks, stacked
from rhino.sharding.problem import REPLICATED
from rhino.sharding.sliced import moved

if TYPE_CHECKING:
    from rhino.sharding.costs import Costs, States

# What leaves the order of a layer's dimensions as it is.
_KEEPING = ("stablehlo.convert", "stablehlo.reshape")
_LOOP, _READ = "stablehlo.while", "stablehlo.dynamic_slice"

# Dimensions that are gathered along, of more than one element, from the last on: 0 is the last.
_Dims = tuple[int, ...]


def stacks(costs: Costs, states: Sequence[States], nbytes: Callable[[int], int]) -> Iterator[tuple[int, int, int]]:
    """Stacks that are kept twice: (value in the loop that reads it first, first op, last op).

    A gather puts the dimension that it gathers outermost, and its operand's layout reaches through slices and loops up
    to what the first loop is given. What one loop stacks and another gathers of is given up as it is copied: of all
    that are laid out anew for a loop the largest is there twice, in front of it.

    Args:
      nbytes: of a value on a device.
    """
    graph = costs.problem.graph
    found: dict[tuple[int, _Dims], tuple[int, int, int]] = {}
    gathers, written = list(_gathers(costs, states)), stacked(graph)
    for v, dims in gathers:
        read = _read_stack(graph, v)
        if read is not None and read[1][0] not in written:
            loop, tie = read
            stack, first, last = found.get((tie[0], dims), (tie[1], loop.index, 0))
            found[tie[0], dims] = (stack, min(first, loop.index), max(last, loop.region_end - 1))
    yield from found.values()
    copies: dict[int, list[int]] = {}
    for stack, loop_index in _between_loops(graph, gathers, written):
        copies.setdefault(loop_index, []).append(stack)
    for loop_index, values in copies.items():
        yield max(values, key=nbytes), loop_index, loop_index


def outermost(shape: Sequence[int]) -> int:
    """The dimension along which a gather leaves a tensor's dimensions in their order."""
    return next((d for d, n in enumerate(shape) if n > 1), 0)


def _gathers(costs: Costs, states: Sequence[States]) -> Iterator[tuple[int, _Dims]]:
    """What loops gather, not along its outermost dimension, in the order of the program."""
    klass, graph = costs.quotient.klass, costs.problem.graph
    found: dict[tuple[int, _Dims], None] = {}
    for transfer in moved(costs, states):
        shape = graph.values[transfer.value].shape
        if graph.values[transfer.value].loop < 0:
            continue
        source = transfer.sources[0]
        start = costs.layout(source, states[klass[source.node]])
        for target in transfer.targets:
            end = costs.layout(target, states[klass[target.node]])
            gathered = sorted({s for s, e in zip(start, end, strict=True) if s >= 0 and e == REPLICATED})
            if gathered and gathered[0] > outermost(shape):
                found[transfer.value, tuple(sum(n > 1 for n in shape[d + 1 :]) for d in gathered)] = None
    yield from sorted(found)


def _read_stack(graph: Graph, v: int) -> tuple[Op, tuple[int, ...]] | None:
    """The loop, and its carried values, of which a value is a layer; None if it is none, or the loop changes it."""
    op = graph.producer(v)
    while op is not None and _keeps(graph, op):
        op = graph.producer(op.operands[0])
    if op is None or op.name != _READ or op.parent < 0:
        return None
    loop = graph.ops[op.parent]
    tie = next((t for t in loop.ties if len(t) > 2 and t[2] == op.operands[0]), None)
    return (loop, tie) if tie is not None and is_invariant(loop, tie) else None


def _keeps(graph: Graph, op: Op) -> bool:
    return op.name in _KEEPING and _layer(graph, op.operands[0]) == _layer(graph, op.results[0])


def _layer(graph: Graph, v: int) -> tuple[int, ...]:
    return tuple(n for n in graph.values[v].shape if n > 1)


def _between_loops(
    graph: Graph, gathers: Sequence[tuple[int, _Dims]], written: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """What one loop stacks in another order than another reads it in, and the index of that."""
    if not written or not gathers:
        return
    turned, users, known = _turned(graph, gathers), graph.users(), copied_stacks(graph)
    for loop in graph.ops:
        for position, tie in enumerate(loop.ties if loop.name == _LOOP else ()):
            if tie[0] not in written or not is_invariant(loop, tie) or (loop.index, position) in known:
                continue
            rows = [graph.ops[o].results[0] for o in users[tie[2]] if graph.ops[o].name == _READ]
            wanted = next((turned[v] for v in rows if v in turned), ())
            if rows and wanted != _order(graph, written[tie[0]], turned):
                yield tie[0], loop.index


def _turned(graph: Graph, gathers: Sequence[tuple[int, _Dims]]) -> Mapping[int, _Dims]:
    """What is laid out for a gather: its operand, and what that is made of element by element."""
    found: dict[int, _Dims] = {}
    for gathered, dims in gathers:
        queue = [] if gathered in found else [gathered]
        for v in queue:
            found[v] = dims
            op = graph.producer(v)
            if op is not None and (_keeps(graph, op) or is_elementwise(graph, op)):
                layer = _layer(graph, v)
                queue.extend(u for u in op.operands if u not in found and _layer(graph, u) == layer)
    return found


def _order(graph: Graph, row: int, turned: Mapping[int, _Dims]) -> _Dims:
    """For which gather a row is laid out; () for none."""
    while row not in turned and (op := graph.producer(row)) is not None and _keeps(graph, op):
        row = op.operands[0]
    return turned.get(row, ())
