"""Where a program's collectives can run beside its computing: in loops that sum gradients, in others, or in none.

XLA runs nothing of one computation beside another, and the body of a loop is one. A loop over layers backwards has what
it sums to hide, and all that it computes to hide it under; the forward loop and the optimizer's update do not help.
Owns which computing, and which transfers, are where. How much can be hidden is in `rhino.sharding.overlap`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from rhino.program.data import Graph
from rhino.program.layers import made_for_layers
from rhino.program.operations import CONTRACTIONS
from rhino.sharding.overlap import WON, ComputeWindow
from rhino.sharding.problem import Problem
from rhino.sharding.symmetry import Quotient
from rhino.sharding.trips import Trip, loop_around, trips

# Windows: where no loop is, in loops that sum gradients, and in others. A step without the second has one for all.
_OUTSIDE, _SUMMING, _OTHER = range(3)
_ALL_OUTSIDE = (1.0, 0.0, 0.0)
# The program around its loops, as `loop_around` has it.
_AROUND = -1


@dataclass(frozen=True, slots=True)
class Hiding:
    """Three windows: where no loop is, in loops that sum gradients, and in others; all is in the first by default.

    Attributes:
      windows: what of the computing of each can have collectives beside it.
      shares: per class, of its computing, what is in each.
      within: of the tied transfers, the window that they are in.
      trips: what the loops do in each trip, and the program around them once, where there is anything to hide.
    """

    windows: tuple[ComputeWindow, ComputeWindow, ComputeWindow] = (ComputeWindow(), ComputeWindow(), ComputeWindow())
    shares: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    within: Mapping[int, int] = field(default_factory=dict)
    trips: Sequence[Trip] = ()

    def window_of(self, transfer: int) -> int:
        """The window that a tied transfer is in."""
        return self.within.get(transfer, _OUTSIDE)

    @property
    def most(self) -> float:
        """The largest share of its computing that any of the windows that there are wins."""
        return max(window.share * window.won for window in (self.windows if self.within else self.windows[:1]))

    def with_room(self, shares: Sequence[float]) -> Hiding:
        """The same, with collectives beside no more than such shares of computing, by window."""
        first, second, third = (
            window._replace(share=min(window.share, share)) for window, share in zip(self.windows, shares, strict=True)
        )
        return replace(self, windows=(first, second, third))

    def shares_of(self, k: int) -> tuple[float, ...]:
        """Of the computing of class k, what is in each window."""
        return self.shares.get(k, _ALL_OUTSIDE)


def hiding(
    problem: Problem,
    quotient: Quotient,
    gradients: AbstractSet[int],
    shares: tuple[float, float, float],
    seconds: Sequence[float],
) -> Hiding:
    """Where a program's transfers and computing are.

    Args:
      gradients: the tied transfers of gradients, and of parameters, that computing can hide.
      shares: per window, of its computing, what can have collectives beside it.
      seconds: per op, of its undivided computing in a step.
    """
    graph = problem.graph
    # Sums of products: what else is summed for a layer, of a bias or a norm, is small.
    made = {v for v in made_for_layers(graph) if graph.ops[graph.values[v].producer].name in CONTRACTIONS}
    summing = {
        loop_around(graph, transfer.op)
        for transfer, _ in quotient.transfers
        if transfer.kind == "define" and transfer.index in gradients and transfer.value in made
    }
    if not summing:
        one = (ComputeWindow(shares[_OUTSIDE], WON), ComputeWindow(), ComputeWindow())
        known = {_AROUND, *(loop_around(graph, o) for o, s in enumerate(seconds) if s)} if gradients else ()
        return Hiding(one, trips=trips(problem, quotient, seconds, dict.fromkeys(known, _OUTSIDE)))

    def window_of(loop: int) -> int:
        return _OUTSIDE if loop < 0 else _SUMMING if loop in summing else _OTHER

    within = {}
    for transfer, _ in quotient.transfers:
        alike = [problem.transfers[t] for t in quotient.alike[transfer.index]]
        found = [window_of(loop_around(graph, t.op)) for t in alike]
        within[transfer.index] = max(range(len(shares)), key=found.count)
    spent = [[0.0] * len(shares) for _ in quotient.counts]
    loops: dict[int, float] = {}
    for n, node in enumerate(problem.nodes):
        for op in node.ops:
            loop = loop_around(graph, op)
            spent[quotient.klass[n]][window_of(loop)] += seconds[op]
            loops[loop] = loops.get(loop, 0.0) + seconds[op]
    outside, summed, other = (
        ComputeWindow(share, _won(graph, {loop: s for loop, s in loops.items() if window_of(loop) == window}))
        for window, share in enumerate(shares)
    )
    of_classes = {k: tuple([part / sum(parts) for part in parts]) for k, parts in enumerate(spent) if sum(parts)}
    bodies = trips(problem, quotient, seconds, {loop: window_of(loop) for loop in {_AROUND, *loops}})
    return Hiding((outside, summed, other), of_classes, within, bodies)


def _won(graph: Graph, loops: Mapping[int, float]) -> float:
    """Of what loops could hide, what they do: all but one trip's, whose gathers or sums nothing is beside.

    With 3, 4 and 8 layers, as with 96, a step waits for what one of them sends (`rhino compile --overlap --timeline`).

    Args:
      loops: what each computes, in seconds.
    """
    trips = {loop: graph.ops[loop].iterations for loop, seconds in loops.items() if loop >= 0 and seconds > 0}
    known = {loop: n for loop, n in trips.items() if n > 1}
    if not known:
        return WON
    return 1 - sum(loops[loop] / n for loop, n in known.items()) / sum(loops[loop] for loop in known)
