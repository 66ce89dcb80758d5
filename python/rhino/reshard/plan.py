"""A plan of a resharding: units, senders, times and bounds, and the program that carries it out.

Owns the way from tensors to a checked program. Knows neither jax nor MLIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rhino.errors import RhinoError
from rhino.reshard.bounds import Bounds, bounds_of_tasks
from rhino.reshard.checker import check_program
from rhino.reshard.data import Network, Phase, Program, Tensor, Unit
from rhino.reshard.lists import ListSchedule, greedy, load_balance, naive, timed
from rhino.reshard.strategies import check_strategy, task_chunks, task_phases, task_time
from rhino.reshard.units import Task, host_of, tasks_of, units_of

SCHEDULERS = ("naive", "load-balance", "greedy", "search", "optimal")

# (host, device, bytes): a device of a host sends so many bytes of a unit.
Sender = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """How tensors get from their source tiles to their target tiles.

    Attributes:
      units: what is moved, by index.
      senders: per unit (host, device, bytes); "optimal" may split a unit over several. What stays inside hosts has one
        too.
      starts: planned start of each unit, seconds.
      order: unit indices by start.
      makespan_s: planned seconds. Without latency, and with no number of chunks given, in the limit of ever smaller
        chunks; what the program takes in its whole number of chunks is `program_time(program, network)`.
      chunks: the most that a unit is sent in.
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
    program: Program

    @property
    def bound_s(self) -> Fraction:
        """No program is faster: the larger of what hosts receive and what they have to send."""
        return self.bounds.bound

    @property
    def gap(self) -> Fraction:
        """makespan_s / bound_s - 1; 0 proves that the plan is optimal."""
        return self.makespan_s / self.bound_s - 1 if self.bound_s else Fraction(0)


def plan_reshard(
    tensors: Sequence[Tensor],
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
      strategy: "send-recv", "local-all-gather", "global-all-gather" or "broadcast" (`unit_time`). A unit for several
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

    def time(task: Task, sender: int) -> Fraction:
        return task_time(strategy, task, sender, network, chunks)

    schedules = {
        "naive": lambda: timed(naive(tasks), time),
        "load-balance": lambda: timed(load_balance(tasks, network), time),
        "greedy": lambda: greedy(tasks, network, time, seed),
    }
    chosen = (
        schedules[scheduler]()
        if scheduler in schedules
        else min((make() for make in schedules.values()), key=lambda each: each.makespan)
    )
    return _listed(strategy, scheduler, units, chosen, bounds, network, chunks)


def _listed(
    strategy: str,
    scheduler: str,
    units: tuple[Unit, ...],
    schedule: ListSchedule,
    bounds: Bounds,
    network: Network,
    chunks: int | None,
) -> ReshardPlan:
    """The plan of a list schedule: one phase per unit, in order of their starts."""
    starts = [Fraction(0)] * len(units)
    senders: list[tuple[Sender, ...]] = [()] * len(units)
    phases: list[Phase] = []
    most = 1
    ranked = sorted(range(len(units)), key=lambda at: (schedule.starts[at], at))
    for at in ranked:
        task, sender = schedule.order[at]
        unit = units[task.unit]
        starts[task.unit] = schedule.starts[at]
        device = next(device for device in unit.holders if host_of(network, device) == sender)
        senders[task.unit] = ((sender, device, unit.nbytes),)
        phases += task_phases(strategy, task, sender, network, chunks)
        most = max(most, task_chunks(strategy, task, network, chunks))
    program = made_program(units, phases)
    check_program(program, network)
    makespan = schedule.makespan
    return ReshardPlan(
        strategy,
        scheduler,
        units,
        tuple(senders),
        tuple(starts),
        tuple(schedule.order[at][0].unit for at in ranked),
        makespan,
        bounds,
        most,
        program,
    )


def made_program(units: tuple[Unit, ...], phases: Sequence[Phase]) -> Program:
    """The program of phases, with the hosts that they name."""
    hosts = {host for phase in phases for step in phase.steps for hop in step.hops for host in (hop.source, hop.target)}
    return Program(tuple(sorted(hosts)), units, tuple(phases))
