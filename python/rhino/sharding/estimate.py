"""Prediction for a plan that is already there. What its shardings leave open is chosen as XLA would.

Owns that; the numbers come from the same costs as the search's: of a plan that the search wrote, they are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.collectives import ring_bytes
from rhino.program.data import Graph
from rhino.program.memory import lifetimes
from rhino.sharding.combining import ALONE, Combined
from rhino.sharding.cones import build_problem
from rhino.sharding.costs import Costs, States
from rhino.sharding.descent import Setting, jointly, start_from_nothing
from rhino.sharding.evaluate import Prediction, predict
from rhino.sharding.layout import RouteStep
from rhino.sharding.leaving import executions
from rhino.sharding.nesting import nest
from rhino.sharding.paid import paid
from rhino.sharding.pinning import pinned_states, settled
from rhino.sharding.problem import Problem
from rhino.sharding.replay import UnreadableError, Written, replay
from rhino.sharding.sub_axes import with_parts
from rhino.sharding.symmetry import Quotient, tie_repeats
from rhino.sharding.time_model import ProgramTimes, TimeModel
from rhino.sharding.updates import parted_share


@dataclass(frozen=True, slots=True)
class CollectiveEvent:
    """One collective: the op that causes it, its kind and axes, bytes sent and seconds per execution."""

    op: int
    kind: str
    axes: tuple[str, ...]
    nbytes: float
    seconds: float
    trips: int


@dataclass(frozen=True, slots=True)
class Estimated:
    """`op_seconds` and `op_parts`: per heavy op, seconds of one execution on one device, and into how many it is split.

    `events` are the collectives, the most expensive first, of repeated ones one. `clashes` are as `Pinned` has them.
    `costs` and `states` are what was decided. `guessed` names values with layouts that no decision can have, for which
    the cheapest are predicted.
    """

    predicted: Prediction
    op_seconds: dict[int, float]
    op_parts: dict[int, float]
    events: tuple[CollectiveEvent, ...]
    clashes: tuple[tuple[str, str], ...] = ()
    costs: Costs | None = field(default=None, repr=False, compare=False)
    states: tuple[States, ...] = field(default=(), repr=False, compare=False)
    guessed: tuple[str, ...] = ()


def collectives(costs: Costs, chosen: Sequence[States], every: bool = False) -> list[CollectiveEvent]:
    """The collectives of a plan, the most expensive first.

    Args:
      every: whether repeated ones are all there, and those that operations make inside of what is combined.
    """
    problem, quotient = costs.problem, costs.quotient
    graph, nesting = problem.graph, nest(costs, chosen)
    events = []

    def add(
        op: int, steps: Sequence[RouteStep], trips: int, seconds: float | None = None, combined: Combined = ALONE
    ) -> None:
        for step in steps:
            axes = tuple(costs.names[a] for a in step.axes)
            sent = ring_bytes(step.kind, prod(costs.sizes[a] for a in step.axes), step.nbytes)
            one = costs.step_seconds(step, combined) if seconds is None else seconds
            events.append(CollectiveEvent(op, step.kind, axes, sent, one, trips))

    for node in problem.nodes if graph.axes or every else ():
        k = quotient.klass[node.index]
        if node.kind == "op":
            for one, steps, trips in costs.losses(k, chosen[k]):
                add(node.ops[0], steps, trips, one)
        elif every:
            for v, op, source, target in costs.lost(node.index, chosen[k]):
                add(op, costs.convert(v, source, target)[1], graph.ops[op].trips)
    for transfer in problem.transfers:
        tied = quotient.standing.get(quotient.tied[transfer.index] if every else transfer.index)
        if tied is not None:
            for _, steps, source, target in paid(costs, tied, chosen, nesting):
                for step, times in executions(costs, tied, source, target, steps):
                    add(transfer.op, (step,), times, combined=costs.combined(tied))
    return sorted(events, key=lambda e: (-e.seconds * e.trips, e.op, e.kind))


def estimate(graph: Graph, cluster: Cluster, mesh: Sequence[tuple[str, int]], strict: bool = True) -> Estimated:
    """Predicts an annotated program.

    Args:
      graph: with the module's shardings as pins.
      mesh: (axis, size) pairs, outermost first.
      strict: as of `pinned_states`.

    Raises:
      RhinoError: the mesh does not have the cluster's devices, or shardings inside one cone contradict each other.
    """
    _check(cluster, mesh)
    names, sizes = tuple(n for n, _ in mesh), tuple(s for _, s in mesh)
    problem = build_problem(graph, uneven=True)
    quotient = tie_repeats(problem)
    costs = costs_on(problem, quotient, cluster, mesh)
    pinned = pinned_states(problem, quotient, sizes, names, strict)
    setting = Setting(costs, pinned.states)
    start = start_from_nothing(setting)
    if start is None:
        raise RhinoError("the shardings cannot be met together")
    return _estimated(costs, jointly(setting, start).states, pinned.clashes)


def estimate_propagated(graph: Graph, cluster: Cluster, mesh: Sequence[tuple[str, int]]) -> Estimated:
    """Predicts a program whose layouts were propagated, and in which every change of a layout is an operation.

    Nothing is left to choose, but for factors that layouts of one operation have on one axis.

    Args:
      graph: with the layouts of all values as pins.
      mesh: (axis, size) pairs, outermost first.

    Raises:
      RhinoError: as `estimate`.
    """
    _check(cluster, mesh)
    graph, mesh = with_parts(graph, mesh)
    names, sizes = tuple(n for n, _ in mesh), tuple(s for _, s in mesh)
    problem = build_problem(graph, uneven=True)
    quotient = tie_repeats(problem)
    costs = costs_on(problem, quotient, cluster, mesh)
    pinned = pinned_states(problem, quotient, sizes, names, strict=False)
    states = settled(problem, quotient, sizes, names, pinned.states)
    setting = Setting(costs, states)
    start = start_from_nothing(setting)
    if start is None:
        raise RhinoError("the shardings cannot be met together")
    found = _estimated(costs, jointly(setting, start).states, pinned.clashes)
    opened = {k for k, held in states.items() if names and not any(held)}
    at = [v for v in graph.pins if problem.node_of[v] >= 0 and quotient.klass[problem.node_of[v]] in opened]
    return replace(found, guessed=tuple(graph.pins[v][0] for v in at))


def estimate_plan(graph: Graph, written: Written, cluster: Cluster, mesh: Sequence[tuple[str, int]]) -> Estimated:
    """Predicts a program as it was planned: what is returned is what the search predicted.

    Args:
      graph: the program as the search saw it.
      written: the layouts that the plan gave it.
      mesh: (axis, size) pairs, outermost first.

    Raises:
      UnreadableError: no search wrote these layouts.
      RhinoError: the mesh does not have the cluster's devices.
    """
    _check(cluster, mesh)
    names = [name for name, _ in mesh]
    # As the search has it; a plan of what was given may lay out more apart.
    problem = build_problem(graph, uneven=True, parted=parted_share(graph))
    try:
        quotient, states = replay(problem, names, written)
    except UnreadableError:
        problem = build_problem(graph, uneven=True)
        quotient, states = replay(problem, names, written)
    return _estimated(costs_on(problem, quotient, cluster, mesh), states)


def _check(cluster: Cluster, mesh: Sequence[tuple[str, int]]) -> None:
    sizes = [size for _, size in mesh]
    if prod(sizes) != cluster.num_devices:
        raise RhinoError(
            f"mesh {'x'.join(map(str, sizes))} has {prod(sizes)} devices but cluster {cluster.name} has "
            f"{cluster.num_devices}",
            "estimate for a cluster of the mesh's size",
        )


def costs_on(problem: Problem, quotient: Quotient, cluster: Cluster, mesh: Sequence[tuple[str, int]]) -> Costs:
    """The costs of a program on a mesh of a cluster, as the search has them."""
    times = ProgramTimes.of(problem, quotient, TimeModel(cluster))
    return Costs.on(times, [size for _, size in mesh], [name for name, _ in mesh])


def _estimated(costs: Costs, chosen: tuple[States, ...], clashes: tuple[tuple[str, str], ...] = ()) -> Estimated:
    problem, quotient, sizes = costs.problem, costs.quotient, costs.sizes
    graph = problem.graph
    seconds: dict[int, float] = {}
    parts: dict[int, float] = {}
    for node in problem.nodes:
        if node.kind == "op" and graph.ops[node.ops[0]].flops:
            states = chosen[quotient.klass[node.index]]
            op = graph.ops[node.ops[0]]
            parts[op.index] = node.parts(states, sizes)
            seconds[op.index] = costs.node(quotient.klass[node.index], states) / op.trips
    events = collectives(costs, chosen)
    predicted = predict(costs, chosen, lifetimes(graph))
    return Estimated(predicted, seconds, parts, tuple(events), clashes, costs, chosen)
