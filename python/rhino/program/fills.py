"""Constant fills that kernels read from memory, because what they work on was updated in place from the same fill.

Owns which these are. `XLA: fills-read`. Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from rhino.program.data import Graph, Op
from rhino.program.fusible import is_fusible, made_of
from rhino.program.fusion import IN_PLACE, splats

_BROADCAST = "stablehlo.broadcast_in_dim"


def read_fills(graph: Graph, real: Sequence[bool]) -> Mapping[int, int]:
    """Fills that are fused, but for an update of the same fill: each with the first of its likes.

    XLA has one value for all fills with a constant of one shape, and fuses it into all of its readers or none. What is
    updated starts with a copy, so that the others have memory of their own, all the same. A kernel that does not follow
    from the update makes the fill itself, as another result.

    Args:
      real: `fusion.materialised` of the graph.
    """
    users, constants = graph.users(), splats(graph)
    alike: dict[tuple[int, tuple[int, ...], int], list[int]] = {}
    for op in graph.ops:
        if op.name == _BROADCAST and op.operands[0] in constants:
            v = op.results[0]
            alike.setdefault((op.operands[0], graph.values[v].shape, op.parent), []).append(v)

    def follows(op: Op, updated: AbstractSet[int]) -> bool:
        return any(v in updated for v in made_of(graph, op.operands, lambda _, maker: is_fusible(maker)))

    found: dict[int, int] = {}
    for values in alike.values():
        updated = {
            graph.ops[o].results[0]
            for v in values
            for o in users[v]
            if graph.ops[o].name in IN_PLACE and graph.ops[o].operands[0] == v
        }
        read = [
            v
            for v in (values if updated else ())
            if not real[v] and any(follows(graph.ops[o], updated) for o in users[v])
        ]
        found.update((v, read[0]) for v in read)
    return found
