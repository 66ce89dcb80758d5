"""Stacks of layers that a loop reads, laid out anew for the gathers of what it reads.

Owns which stacks those are under a plan, and from when to when XLA keeps the second one. `XLA: stacks-laid-out-anew`.
Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rhino.program.data import Graph, Op
from rhino.program.fusion import is_invariant
from rhino.sharding.problem import REPLICATED
from rhino.sharding.sliced import moved

if TYPE_CHECKING:
    from rhino.sharding.costs import Costs, States

# What leaves the order of a layer's dimensions as it is.
_KEEPING = ("stablehlo.convert", "stablehlo.reshape")


def stacks(costs: Costs, states: Sequence[States]) -> Iterator[tuple[int, int, int]]:
    """Stacks that are kept twice: (value in the loop that reads it first, first op, last op).

    A gather puts the dimension that it gathers outermost, and its operand's layout reaches through slices and loops up
    to what the first loop is given.
    """
    problem, klass = costs.problem, costs.quotient.klass
    graph = problem.graph
    found: dict[tuple[int, tuple[int, ...]], tuple[int, int, int]] = {}
    for transfer in moved(costs, states):
        if graph.values[transfer.value].loop < 0:
            continue
        read = _read_stack(graph, transfer.value)
        if read is None:
            continue
        loop, tie = read
        source = transfer.sources[0]
        start = costs.layout(source, states[klass[source.node]])
        first_dim = outermost(graph.values[transfer.value].shape)
        for target in transfer.targets:
            end = costs.layout(target, states[klass[target.node]])
            gathered = tuple(sorted({s for s, e in zip(start, end, strict=True) if s >= 0 and e == REPLICATED}))
            if not gathered or gathered[0] <= first_dim:
                continue
            stack, first, last = found.get((tie[0], gathered), (tie[1], loop.index, 0))
            found[tie[0], gathered] = (stack, min(first, loop.index), max(last, loop.region_end - 1))
    yield from found.values()


def outermost(shape: Sequence[int]) -> int:
    """The dimension along which a gather leaves a tensor's dimensions in their order."""
    return next((d for d, n in enumerate(shape) if n > 1), 0)


def _read_stack(graph: Graph, v: int) -> tuple[Op, tuple[int, ...]] | None:
    """The loop, and its carried values, of which a value is a layer; None if it is none, or the loop changes it."""
    op = graph.producer(v)
    while op is not None and op.name in _KEEPING:
        if _layer(graph, op.operands[0]) != _layer(graph, op.results[0]):
            return None
        op = graph.producer(op.operands[0])
    if op is None or op.name != "stablehlo.dynamic_slice" or op.parent < 0:
        return None
    loop = graph.ops[op.parent]
    tie = next((t for t in loop.ties if len(t) > 2 and t[2] == op.operands[0]), None)
    return (loop, tie) if tie is not None and is_invariant(loop, tie) else None


def _layer(graph: Graph, v: int) -> tuple[int, ...]:
    return tuple(n for n in graph.values[v].shape if n > 1)
