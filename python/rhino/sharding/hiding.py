"""Where a program's collectives can run beside its computing: in loops that sum gradients, or outside of them.

XLA runs nothing of one computation beside another, and the body of a loop is one. A loop over layers backwards has what
it sums to hide, and all that it computes to hide it under; the forward loop and the optimizer's update do not help.
Owns which computing, and which transfers, are where. How much can be hidden is in `rhino.sharding.overlap`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from rhino.program.data import Graph, Op
from rhino.program.operations import CONSTRAINTS, stablehlo
from rhino.program.orders import stacked
from rhino.sharding.problem import LayoutTransfer, Problem
from rhino.sharding.symmetry import Quotient, of_most

_KINDS = ("use", "define", "return")
# What a gradient goes through from its product to its stack, as large as it is.
_ON_THE_WAY = stablehlo("convert reshape transpose broadcast_in_dim reduce") | CONSTRAINTS


@dataclass(frozen=True, slots=True)
class Hiding:
    """Two windows: the first is outside of loops that sum gradients, the second in them.

    Attributes:
      windows: of each, the share of its computing that can have collectives beside it.
      shares: per class, of its computing, what is in the second; 0 where it is left out.
      inside: the tied transfers that are made in the second.
    """

    windows: tuple[float, float] = (0.0, 0.0)
    shares: Mapping[int, float] = field(default_factory=dict)
    inside: AbstractSet[int] = frozenset()

    def window_of(self, transfer: int) -> int:
        """The window that a tied transfer is in."""
        return int(transfer in self.inside)

    @property
    def most(self) -> float:
        """The larger window of those that there are."""
        return max(self.windows) if self.inside else self.windows[0]

    def computing(self, k: int, seconds: float) -> tuple[float, float]:
        """Seconds of computing of class k, by window."""
        within = self.shares.get(k, 0.0) * seconds
        return seconds - within, within


def hiding(
    problem: Problem,
    quotient: Quotient,
    gradients: AbstractSet[int],
    windows: tuple[float, float],
    seconds: Sequence[float],
) -> Hiding:
    """Where a program's transfers and computing are.

    Args:
      gradients: the tied transfers of gradients, and of parameters, that computing can hide.
      seconds: per op, of its undivided computing in a step.
    """
    graph, made = problem.graph, _rows(problem.graph)
    around = _loops(graph)
    loops = {
        around[transfer.op]
        for transfer, _ in quotient.transfers
        if transfer.kind == "define" and transfer.index in gradients and transfer.value in made
    }
    if not loops:
        return Hiding(windows)

    def is_inside(transfer: LayoutTransfer) -> bool:
        # What leaves the loop is not made there.
        return around[transfer.op] in loops and transfer.late == transfer.trips

    inside = frozenset().union(*(of_most(problem, quotient, kind, is_inside) for kind in _KINDS))
    whole, within = ([0.0] * len(quotient.counts) for _ in range(2))
    for n, node in enumerate(problem.nodes):
        for op in node.ops:
            whole[quotient.klass[n]] += seconds[op]
            within[quotient.klass[n]] += seconds[op] if around[op] in loops else 0.0
    shares = {k: part / all_s for k, (part, all_s) in enumerate(zip(within, whole, strict=True)) if part}
    return Hiding(windows, shares, inside)


def _rows(graph: Graph) -> AbstractSet[int]:
    """What dots in loops make for every trip, a row of a stack: of layers, not what is added up over examples."""
    found = set()
    for v in stacked(graph).values():
        maker = graph.producer(v)
        while maker is not None and maker.name in _ON_THE_WAY and _is_as_large(graph, maker):
            v = maker.operands[0]
            maker = graph.producer(v)
        # A convolution's gradient is summed in its own trip (`rhino.ir.late_sums`), of which little is left.
        if maker is not None and maker.name == "stablehlo.dot_general":
            found.add(v)
    return found


def _is_as_large(graph: Graph, op: Op) -> bool:
    return graph.values[op.operands[0]].elements == graph.values[op.results[0]].elements


def _loops(graph: Graph) -> list[int]:
    """Per op, the loop whose body it is in; -1 for none."""
    found: list[int] = []
    for op in graph.ops:
        parent = op.parent
        found.append(parent if parent < 0 or graph.ops[parent].name == "stablehlo.while" else found[parent])
    return found
