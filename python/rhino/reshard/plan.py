"""A plan of a resharding: units, senders, times and bounds, and the program that carries it out.

Owns the way from tensors to a checked program. Knows neither jax nor MLIR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rhino.errors import RhinoError
from rhino.reshard.bounds import Bounds, bounds_of_tasks
from rhino.reshard.checker import check_program, program_time, unit_starts
from rhino.reshard.data import SCHEDULERS, MessageProgram, MovedTensor, Network, Phase, Unit
from rhino.reshard.lists import ListSchedule, greedy, load_balance, naive, timed
from rhino.reshard.optimal import limit_time, optimal_program
from rhino.reshard.programs import made_program
from rhino.reshard.search import search
from rhino.reshard.sent import ports_of, sender_on, senders_of
from rhino.reshard.strategies import check_strategy, fluid_chunks, task_chunks, task_phases, task_time
from rhino.reshard.units import BundleTask, bundled, tasks_of, units_of

# (host, device, bytes): a device of a host sends so many bytes of a unit.
Sender = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """How tensors get from their source tiles to their target tiles.

    Attributes:
      units: what is moved, by index.
      senders: per unit (host, device, bytes): who puts how many of its bytes on the way; "optimal" may split a unit
        over several. What stays inside hosts has one too.
      starts: planned start of each unit, seconds.
      order: unit indices by start.
      makespan_s: planned seconds. Without latency, and with no number of chunks given, in the limit of ever smaller
        chunks; what the program takes in its whole number of chunks is `program_time(program, network)`.
      chunks: the most that a bundle is sent in.
      program: the messages; it has passed `check_program`.
    """

    strategy: str
    scheduler: str
    units: tuple[Unit, ...]
    senders: tuple[tuple[Sender, ...], ...]
    starts: tuple[Fraction, ...]
    order: tuple[int, ...]
    makespan_s: Fraction
    bounds: Bounds
    chunks: int
    program: MessageProgram

    @property
    def bound_s(self) -> Fraction:
        """No program is faster: the larger of what hosts receive and what they have to send."""
        return self.bounds.bound

    @property
    def gap(self) -> Fraction:
        """makespan_s / bound_s - 1; 0 proves that the plan is optimal."""
        return self.makespan_s / self.bound_s - 1 if self.bound_s else Fraction(0)


def plan_reshard(
    tensors: Sequence[MovedTensor],
    network: Network,
    strategy: str = "broadcast",
    scheduler: str = "optimal",
    *,
    chunks: int | None = None,
    seed: int = 0,
    time_limit_s: float = 1.0,
) -> ReshardPlan:
    """Plans the resharding of all tensors together. The same arguments give the same plan on every machine.

    Args:
      strategy: "send-recv", "local-all-gather", "global-all-gather" or "broadcast". A unit for several
        hosts cannot be gathered inside one, so that local-all-gather sends it to each receiver.
      scheduler: "naive", "load-balance", "greedy", "search" or "optimal".
      chunks: pieces that each broadcast is cut into; the best number where none is given.
      seed: of what is random in "greedy" (and in "search" and "optimal", which start from it).
      time_limit_s: of "search", turned into a number of nodes by a fixed rule.

    Raises:
      RhinoError: an unknown strategy or scheduler, tiles that do not fit their tensors, a device without a host.
    """
    check_strategy(strategy)
    if scheduler not in SCHEDULERS:
        raise RhinoError(f"scheduler {scheduler!r} is unknown", f"use one of {', '.join(SCHEDULERS)}")
    if chunks is not None and chunks < 1:
        raise RhinoError(f"chunks: {chunks} is not a positive number", "give 1 or more, or leave it out")
    units = units_of(tensors)
    tasks = tasks_of(units, network, [tensor.item_bytes for tensor in tensors])
    bounds = bounds_of_tasks(tasks, network)

    known: dict[tuple[object, ...], Fraction] = {}

    def time(task: BundleTask, sender: int) -> Fraction:
        key = (task.nbytes, task.item_bytes, task.targets, task.receivers, sender)
        if key not in known:
            known[key] = task_time(strategy, task, sender, network, chunks)
        return known[key]

    ports = ports_of(tensors, network.host_of)
    problem = _Problem(strategy, scheduler, units, tasks, bounds, network, chunks, ports)
    alone = tuple((unit.index,) for unit in units)
    if scheduler == "naive":
        return _listed(problem, timed(naive(tasks), time), alone)
    if scheduler == "load-balance":
        return _listed(problem, timed(load_balance(tasks, network), time), alone)
    if scheduler == "greedy":
        return _listed(problem, greedy(tasks, network, time, seed), alone)

    # The host that is busy for as long as the bound sends or receives a message at least.
    least = bounds.bound + network.latency_s

    def best_list(tasks: Sequence[BundleTask]) -> ListSchedule:
        rules = (naive(tasks), load_balance(tasks, network))
        best = min(*(timed(rule, time) for rule in rules), greedy(tasks, network, time, seed), key=_makespan)
        return search(tasks, time, best, time_limit_s) if best.makespan > least else best

    if scheduler == "search":
        return _listed(problem, best_list(tasks), alone)
    bundles, together = bundled(tasks, alike=strategy in ("send-recv", "local-all-gather"))
    exact = _exact(problem, bundles, together) if strategy == "broadcast" else None
    if exact is not None and exact.makespan_s <= least:
        return exact
    best, best_bundles = best_list(together), bundles
    if best.makespan > least and len(together) < len(tasks):
        # Bundles are not split there, so that units by themselves can be better.
        each = best_list(tasks)
        if each.makespan < best.makespan:
            best, best_bundles = each, alone
    return exact if exact is not None and exact.makespan_s <= best.makespan else _listed(problem, best, best_bundles)


def _makespan(schedule: ListSchedule) -> Fraction:
    return schedule.makespan


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is planned, and how."""

    strategy: str
    scheduler: str
    units: tuple[Unit, ...]
    tasks: tuple[BundleTask, ...]
    bounds: Bounds
    network: Network
    chunks: int | None
    ports: Mapping[int, int]

    @property
    def fluid(self) -> bool:
        """Whether broadcasts are planned in the limit of ever smaller chunks."""
        return self.chunks is None and not self.network.latency_s


def _listed(problem: _Problem, schedule: ListSchedule, bundles: tuple[tuple[int, ...], ...]) -> ReshardPlan:
    """The plan of a list schedule of bundles: one phase for each, in order of their starts."""
    starts = [Fraction(0)] * len(problem.units)
    phases: list[Phase] = []
    most = 1
    for at in sorted(range(len(schedule.order)), key=lambda at: (schedule.starts[at], at)):
        task, host = schedule.order[at]
        for unit in bundles[task.bundle]:
            starts[unit] = schedule.starts[at]
        phases += task_phases(problem.strategy, task, host, problem.network, problem.chunks)
        most = max(most, task_chunks(problem.strategy, task, problem.network, problem.chunks))
    program = made_program(problem.units, bundles, phases)
    return _plan(problem, starts, schedule.makespan, most, program)


def _exact(problem: _Problem, bundles: tuple[tuple[int, ...], ...], tasks: Sequence[BundleTask]) -> ReshardPlan:
    """The plan of broadcasts at the bound, which may split bundles over senders and send them piece by piece."""
    network = problem.network
    program, chunks, flows = optimal_program(tasks, problem.units, bundles, network, problem.chunks)
    begun = unit_starts(program, network)
    starts = [begun.get(unit.index, Fraction(0)) for unit in problem.units]
    depth = max((flow.depth for flow in flows), default=1)
    moved = {host for task in tasks for host in (*task.holders, *task.targets)}
    if not problem.fluid or chunks < fluid_chunks(depth):
        makespan = program_time(program, network)
    elif len({network.bandwidth_bytes_s[host] for host in moved}) <= 1:
        # Where bandwidths are equal the loads of ports are all there is, and matchings carry them.
        makespan = problem.bounds.bound
    else:
        makespan = limit_time(flows, program, network)
    return _plan(problem, starts, makespan, chunks, program)


def _senders(problem: _Problem, program: MessageProgram) -> tuple[tuple[Sender, ...], ...]:
    """Those of the program; what stays inside hosts has its first host."""
    sent = senders_of(program, problem.network.host_of)
    inside = [((task.holders[0], task.nbytes),) for task in problem.tasks]
    return tuple(
        tuple(_sender(problem, unit, host, nbytes) for host, nbytes in each or alone)
        for unit, (each, alone) in enumerate(zip(sent, inside, strict=True))
    )


def _sender(problem: _Problem, unit: int, host: int, nbytes: int) -> Sender:
    """A host, and its device that sends a unit."""
    held = [device for device in problem.units[unit].holders if problem.network.host_of[device] == host]
    return host, sender_on(held, problem.ports[host]), nbytes


def _plan(
    problem: _Problem,
    starts: Sequence[Fraction],
    makespan: Fraction,
    chunks: int,
    program: MessageProgram,
) -> ReshardPlan:
    check_program(program, problem.network)
    return ReshardPlan(
        problem.strategy,
        problem.scheduler,
        problem.units,
        _senders(problem, program),
        tuple(starts),
        tuple(sorted(range(len(starts)), key=lambda unit: (starts[unit], unit))),
        makespan,
        problem.bounds,
        chunks,
        program,
    )
