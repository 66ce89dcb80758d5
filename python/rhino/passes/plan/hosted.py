"""The search of one program where nothing fits its devices: with optimizer state in the memory of their hosts.

Owns of how many updates the state is there (docs/design/offload.md). How the step is rewritten is `rhino.ir.offload`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rhino.errors import NothingFits
from rhino.ir.microbatch.one_program import OneProgram
from rhino.machine import Cluster
from rhino.machine.roofline import host_seconds
from rhino.program.data import Graph
from rhino.program.hosted import HostedUpdate, hosted_updates
from rhino.sharding import Options, Solution
from rhino.sharding.cuts import AIM
from rhino.sharding.form_bounds import Form
from rhino.sharding.kept import local_bytes
from rhino.sharding.parts import WORTH

# Numbers of updates that are searched besides all.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found: the programs of the step, the form of the best one, its plan."""

    programs: OneProgram
    form: Form
    solution: Solution


def may_keep_state(graph: Graph, cluster: Cluster) -> bool:
    """Whether the devices have a host and the step has state; not all of it is such that the host can keep it."""
    return bool(cluster.device.host_bandwidth_bytes_s) and any(a.role == "opt_state" for a in graph.arguments)


def search_hosted(
    graph: Graph, cluster: Cluster, options: Options, search: Callable[[int, Options], Searched]
) -> Searched | None:
    """The fastest plan found with state of so few updates in the host's memory as it takes to fit, the largest first.

    First with all of it: what room that leaves is given back to the smallest updates. With less, a plan may still fit
    that computes more again: the number is halved a few times, as long as the copies that spares are worth it.

    Args:
      graph: the step, without any.
      search: as of one program, with that of so many updates.

    Returns: None where the devices have no host to keep it, or there is no such state.

    Raises:
      NothingFits: nor does anything so.
    """
    updates = hosted_updates(graph) if may_keep_state(graph, cluster) else []
    if not updates:
        return None
    found = [search(len(updates), options)]
    limit = options.memory_limit or cluster.device.plan_bytes
    few, enough = 0, len(updates)
    guess = _enough(updates, graph, found[0].solution, int(limit * AIM))
    for _ in range(_TRIES):
        # A plan that uses all the room leaves none to guess by, and one that leaves little spares no time.
        worth_s = WORTH[options.level] * min(one.solution.predicted.step_time_s for one in found)
        told = few < guess and _spared_s(updates[guess:enough], cluster) > worth_s
        count = guess if told else _half(updates, few, enough)
        spared_s = _spared_s(updates[count:enough], cluster)
        if not few < count < enough or spared_s <= worth_s or options.deadline.over(found=True):
            break
        try:
            found.append(search(count, replace(options, smallest=False)))
            enough = count
        except NothingFits:
            few = count
        guess = enough
    return min(found, key=lambda one: one.solution.predicted.step_time_s)


def _enough(updates: Sequence[HostedUpdate], graph: Graph, solution: Solution, limit: int) -> int:
    """Of how many updates the state must stay in the host's memory, by what a plan with all of it there leaves free."""
    room = limit - solution.predicted.memory.peak_bytes
    for count in range(len(updates), 0, -1):
        arguments = (graph.arguments[k].value for k, _ in updates[count - 1].state)
        room -= sum(local_bytes(solution.costs, solution.states, v) for v in arguments)
        if room < 0:
            return count
    return 1


def _spared_s(updates: Sequence[HostedUpdate], cluster: Cluster) -> float:
    """Seconds that a step spares by the state of these updates that stays on devices, divided perfectly."""
    nbytes = sum(update.nbytes for update in updates) / cluster.num_devices
    return 2 * host_seconds(cluster, round(nbytes))


def _half(updates: Sequence[HostedUpdate], few: int, enough: int) -> int:
    """A number between two, with half of the bytes that are between them."""
    sizes = [update.nbytes for update in updates[few:enough]]
    half, count = sum(sizes) / 2, few
    for size in sizes[:-1]:
        if half <= 0:
            break
        half, count = half - size, count + 1
    return count
