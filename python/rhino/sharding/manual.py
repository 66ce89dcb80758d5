"""What manual computations cost: seconds, collectives and memory of one device, by the factors that divide them.

Owns how a body is summed up, and which states a plan may give to the operation. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rhino.machine import Cluster
from rhino.machine.roofline import launch_seconds, op_seconds
from rhino.program.data import Graph, Manual, Rule
from rhino.program.memory import lifetimes, peak
from rhino.sharding.problem import Node

# Factors of the operation's rule.
Factors = frozenset[int]


@dataclass(frozen=True, slots=True)
class Inside:
    """One execution of a body on one device; each entry is divided by what splits its factors.

    Attributes:
      work: seconds of computing.
      sent: collectives as (kind, axes, bytes of the full tensor, executions, element type, factors).
      held: bytes that are alive when most are, besides operands and results.
    """

    work: tuple[tuple[Factors, float], ...]
    sent: tuple[tuple[str, tuple[str, ...], int, int, str, Factors], ...]
    held: tuple[tuple[Factors, int], ...]


def insides(graph: Graph, cluster: Cluster) -> dict[int, Inside]:
    """Of all manual computations of a program, by op; equal ones are summed up once."""
    known: dict[str, Inside] = {}
    found = {}
    for op in graph.ops:
        if op.manual is not None:
            if op.manual.key not in known:
                known[op.manual.key] = _inside(op.manual, cluster)
            found[op.index] = known[op.manual.key]
    return found


def _inside(manual: Manual, cluster: Cluster) -> Inside:
    body = manual.body

    def factors(values: Sequence[int]) -> Factors:
        return frozenset(f for v in values for f in manual.places[v] if f >= 0)

    work: dict[Factors, float] = {}
    for op, seconds in zip(body.ops, op_seconds(body, cluster), strict=True):
        key = factors(op.results)
        work[key] = work.get(key, 0.0) + seconds
    if launched_s := sum(launch_seconds(body, cluster)):
        work[frozenset()] = work.get(frozenset(), 0.0) + launched_s
    sent = []
    for one in manual.sent:
        op = body.ops[one.op]
        dtype = body.values[op.operands[0]].dtype if op.operands else ""
        sent.append((one.kind, one.axes, one.nbytes, op.trips, dtype, factors(op.results)))
    life = lifetimes(body)
    kept = set(life.fresh_outputs)
    held: dict[Factors, int] = {}
    for v, nbytes in peak(body, life, [v.nbytes for v in body.values], ()).live:
        if v not in kept:
            key = factors((v,))
            held[key] = held.get(key, 0) + nbytes
    return Inside(tuple(work.items()), tuple(sent), tuple(held.items()))


def parts(node: Node, states: Sequence[int], sizes: Sequence[int], factors: Factors) -> float:
    """Into how many parts the axes in `states` divide what has these factors."""
    return node.parts(states, sizes, [i for i, f in enumerate(node.factors) if f in factors])


def nested(manual: Manual, rule: Rule, names: Sequence[str]) -> tuple[int, ...]:
    """The axes of a mesh from major to minor where several split one dimension: those it takes come first, as given."""
    axis_of = {f: names.index(axis) for axis, f in manual.taken if axis in names and f >= 0}
    stacked = [f for m in (*rule.operands, *rule.results) for dim in m for f in dim if f in axis_of and len(dim) > 1]
    first = list(dict.fromkeys(axis_of[f] for f in stacked))
    return (*first, *(a for a in range(len(names)) if a not in first))


def open_states(manual: Manual, node: Node, axis: str) -> tuple[int, ...]:
    """The states that an axis may have: the one in which the computation takes it, else those of its batches."""
    taken: Mapping[str, int] = dict(manual.taken)
    if axis not in taken:
        return (0, *(s for s, f in enumerate(node.factors, 1) if f in manual.free))
    return (node.factors.index(taken[axis]) + 1,) if taken[axis] in node.factors else (0,)
