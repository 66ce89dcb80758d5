"""Lower bounds on how long a resharding takes, whatever the strategy and the order, for what crosses between hosts.

Owns what is certain before anything is scheduled (docs/design/resharding.md, "Bounds"). Knows neither strategies nor
programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rhino.reshard.data import Network, Unit
from rhino.reshard.flow import least_time
from rhino.reshard.units import BundleTask, tasks_of


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds that no program can be faster than; latency is not counted.

    Attributes:
      recv: the most that one host receives, over its bandwidth.
      send: over all sets of hosts, what only they hold, over their bandwidths together.
      relay: as `send`, with all copies: one for each receiving host, passed on by hosts outside of the set only if they
        receive it. It is more than the two others only where hosts both send and receive.
      unit: the largest unit from its fastest holder; it counts only for programs that do not split units.
    """

    recv: Fraction
    send: Fraction
    relay: Fraction
    unit: Fraction

    @property
    def bound(self) -> Fraction:
        """The bound for programs that may split units: the largest of recv, send and relay."""
        return max(self.recv, self.send, self.relay)


def bounds_of(units: Sequence[Unit], network: Network) -> Bounds:
    """The bounds for units over a network. RhinoError if the network does not have a device."""
    return bounds_of_tasks(tasks_of(units, network), network)


def bounds_of_tasks(tasks: Iterable[BundleTask], network: Network) -> Bounds:
    """As `bounds_of`. What stays inside hosts counts for nothing."""
    speed = network.bandwidth_bytes_s
    moved = [task for task in tasks if task.targets]
    received: dict[int, int] = {}
    held: dict[tuple[int, ...], int] = {}
    copied: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    unit = Fraction(0)
    for task in moved:
        for host in task.targets:
            received[host] = received.get(host, 0) + task.nbytes
        held[task.holders] = held.get(task.holders, 0) + task.nbytes
        key = (task.holders, task.targets)
        copied[key] = copied.get(key, 0) + task.nbytes
        fastest = max(speed[host] for host in task.holders)
        unit = max(unit, Fraction(task.nbytes) / min(fastest, *(speed[host] for host in task.targets)))
    recv = max((Fraction(nbytes) / speed[host] for host, nbytes in received.items()), default=Fraction(0))
    send, _ = least_time([(nbytes, holders, ()) for holders, nbytes in held.items()], speed)
    relay = send
    if any(host in received for holders in held for host in holders):
        relay, _ = least_time([(nbytes, *key) for key, nbytes in copied.items()], speed)
    return Bounds(recv, send, relay, unit)
