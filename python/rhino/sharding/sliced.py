"""Values that are given up before their last reader, because that reads a part, which is cut off earlier.

Owns which those are under a plan, until when each is kept, and the parts that are kept instead. `XLA: sliced-early`.
Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rhino.program.memory import Lifetimes
from rhino.sharding.layout import Layout
from rhino.sharding.problem import REPLICATED, LayoutTransfer
from rhino.sharding.symmetry import transfers_where

if TYPE_CHECKING:
    from rhino.sharding.costs import Costs, States


@dataclass(frozen=True, slots=True)
class Sliced:
    """`ends[v]` is the last op that needs all of value v, where that is before its last reader; `parts` are what the
    others read of it, as (value, layout, first, last).
    """

    ends: dict[int, int]
    parts: tuple[tuple[int, Layout, int, int], ...]


def is_slice(start: Layout, end: Layout) -> bool:
    """Whether a layout becomes another by slicing alone, which sends nothing."""
    return start != end and all(s == e or (s == REPLICATED and e >= 0) for s, e in zip(start, end, strict=True))


def moved(costs: Costs, states: Sequence[States]) -> list[LayoutTransfer]:
    """The uses of values that a reader wants elsewhere than they are kept."""

    def moves(tied: LayoutTransfer) -> bool:
        (source,) = tied.sources
        start = costs.layout(source, states[source.node])
        return any(costs.layout(end, states[end.node]) != start for end in tied.targets)

    return transfers_where(costs.problem, costs.quotient, "use", moves)


def sliced(costs: Costs, states: Sequence[States], life: Lifetimes) -> Sliced:
    """What is given up early under a plan, and what is kept in its place."""
    klass = costs.quotient.klass
    ends: dict[int, int] = {}
    parts: dict[tuple[int, Layout], int] = {}
    for transfer in moved(costs, states):
        v = transfer.value
        if v not in life.readers:
            continue
        source = transfer.sources[0]
        start = costs.layout(source, states[klass[source.node]])
        ways = {target.op: costs.layout(target, states[klass[target.node]]) for target in transfer.targets}
        cut = {op: end for op, end in ways.items() if is_slice(start, end)}
        if not cut:
            continue
        born, *readers = life.readers[v]
        last = max([born[1], *(when for op, when in readers if op not in cut)])
        if last < max(cut):
            ends[v] = last
            for op, end in cut.items():
                parts[v, end] = max(op, parts.get((v, end), op))
    return Sliced(ends, tuple((v, end, life.readers[v][0][1], op) for (v, end), op in parts.items()))
