"""What loops over layers write for each of them, a row of a stack: gradients of its parameters.

Owns which values these are. Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from rhino.program.data import Graph, Op, once
from rhino.program.operations import CONSTRAINTS, PASSING
from rhino.program.orders import stacked

# What a gradient goes through from its product to its stack, as large as it is; a sum of one element is one, too.
_ON_THE_WAY = PASSING | CONSTRAINTS | {"stablehlo.reduce"}


@once
def made_for_layers(graph: Graph) -> AbstractSet[int]:
    """What loops make for every trip, before it goes into a stack: of layers, not what is added up over examples.

    But for what convolutions make, which is summed over devices in its own trip (`rhino.ir.late_sums`).
    """
    found = set()
    for v in stacked(graph).values():
        maker = graph.producer(v)
        while maker is not None and maker.name in _ON_THE_WAY and _is_as_large(graph, maker):
            v = maker.operands[0]
            maker = graph.producer(v)
        if maker is not None and maker.name != "stablehlo.convolution":
            found.add(v)
    return found


def _is_as_large(graph: Graph, op: Op) -> bool:
    return graph.values[op.operands[0]].elements == graph.values[op.results[0]].elements
