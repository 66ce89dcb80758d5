"""Who sends which bytes of each bundle, and over which hosts they are passed on, so that no host is busy for too long.

Owns the exact choice of senders, and of trees. Knows nothing about time steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rhino.reshard.data import Network
from rhino.reshard.flow import Demand, least_time
from rhino.reshard.units import BundleTask

# Holders and targets of a bundle.
Key = tuple[tuple[int, ...], tuple[int, ...]]
# (bytes, host): so many bytes in a row are sent once by the host.
_Share = tuple[Fraction, int]


@dataclass(frozen=True, slots=True)
class BundleFlow:
    """Bytes of one bundle on their way to all of its target hosts.

    Attributes:
      hops: (source, target, lag): a tree from holders over the targets; a hop's lag is how many hops its source is away
        from a holder.
    """

    bundle: int
    item_bytes: int
    start: int
    nbytes: int
    hops: tuple[tuple[int, int, int], ...]

    @property
    def depth(self) -> int:
        """Hops of its longest path."""
        return 1 + max(lag for _, _, lag in self.hops)


def flows_of(tasks: Sequence[BundleTask], network: Network) -> list[BundleFlow]:
    """The flows of tasks, in their order. No two have both the same holders and the same targets.

    Sources and relays are chosen by a maximum flow so that the longest time of a host's sends is least: `Bounds.send`
    where hosts only send or only receive, `Bounds.relay` where some do both. Bytes are cut between items.
    """
    speed = network.bandwidth_bytes_s
    volume = {(task.holders, task.targets): task.nbytes for task in tasks}
    targets = {host for task in tasks for host in task.targets}
    if any(host in targets for task in tasks for host in task.holders):
        shares = _relayed(volume, speed)
    else:
        shares = _chained(volume, speed)
    return [flow for task in tasks for flow in _cut(task, shares[task.holders, task.targets])]


def _chained(volume: Mapping[Key, int], speed: Mapping[int, Fraction]) -> dict[Key, list[list[_Share]]]:
    """Per bundle the rows of its copies: who puts its bytes on the way, then each target but the last, fastest first.

    Targets have nothing else to send, and pass on no more than they receive. Bundles with the same holders share their
    fractions out one after another, so that few are split.
    """
    groups: dict[tuple[int, ...], list[Key]] = {}
    for key in volume:
        groups.setdefault(key[0], []).append(key)
    demands: list[Demand] = [(sum(volume[key] for key in keys), holders, ()) for holders, keys in groups.items()]
    _, sent = least_time(demands, speed)
    rows: dict[Key, list[list[_Share]]] = {}
    for keys, amounts in zip(groups.values(), sent, strict=True):
        waiting = [(amount, host) for host, amount in sorted(amounts.items())]
        for key in keys:
            first = _take(waiting, Fraction(volume[key]))
            chain = sorted(key[1], key=lambda host: (-speed[host], host))
            rows[key] = [first, *([(Fraction(volume[key]), host)] for host in chain[:-1])]
    return rows


def _relayed(volume: Mapping[Key, int], speed: Mapping[int, Fraction]) -> dict[Key, list[list[_Share]]]:
    """As `_chained` where hosts send and receive: a bundle's copies come from holders and from targets that have them.

    All copies in a row, holders first, are cut into one row per copy (McNaughton's rule), so that the first row is of
    holders only.
    """
    demands: list[Demand] = [(amount, *key) for key, amount in volume.items()]
    _, sent = least_time(demands, speed)
    rows: dict[Key, list[list[_Share]]] = {}
    for (key, amount), amounts in zip(volume.items(), sent, strict=True):
        holders, targets = key
        waiting = [(amounts[host], host) for host in (*holders, *targets) if host in amounts]
        rows[key] = [_take(waiting, Fraction(amount)) for _ in targets]
    return rows


def _take(waiting: list[_Share], amount: Fraction) -> list[_Share]:
    """Takes so many bytes from the front of the shares that are waiting."""
    taken = []
    while amount:
        size, host = waiting[0]
        part = min(size, amount)
        taken.append((part, host))
        amount -= part
        if part == size:
            waiting.pop(0)
        else:
            waiting[0] = (size - part, host)
    return taken


def _cut(task: BundleTask, rows: Sequence[Sequence[_Share]]) -> list[BundleFlow]:
    """The flows of a bundle: it is cut where a row changes host."""
    ends = set()
    for row in rows:
        at = Fraction(0)
        for size, _ in row:
            at += size
            ends.add(at)
    cuts = sorted(ends)
    flows = []
    start = 0
    for cut in cuts:
        stop = task.nbytes if cut == cuts[-1] else min(round(cut / task.item_bytes) * task.item_bytes, task.nbytes)
        if stop > start:
            hops = _tree(_at(rows, cut), task.targets)
            flows.append(BundleFlow(task.bundle, task.item_bytes, start, stop - start, hops))
            start = stop
    return flows


def _at(rows: Sequence[Sequence[_Share]], end: Fraction) -> list[int]:
    """The hosts of all rows just before a byte."""
    hosts = []
    for row in rows:
        at = Fraction(0)
        for size, host in row:
            at += size
            if at >= end:
                hosts.append(host)
                break
    return hosts


def _tree(senders: Sequence[int], targets: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Hops to all targets in which each sender sends as often as it is listed; the first one is a holder.

    Targets that send come first, so that what is left to send always includes a host that has the bytes: otherwise all
    that was used would be all of the holders and of the i targets reached, at least i + 1 sends for i targets.
    """
    left = list(senders)
    depth = {host: 0 for host in senders if host not in targets}
    relays = [host for host in dict.fromkeys(senders) if host in targets]
    hops = []
    for target in (*relays, *(host for host in targets if host not in relays)):
        source = min((host for host in left if host in depth), key=lambda host: (depth[host], left.index(host)))
        left.remove(source)
        hops.append((source, target, depth[source]))
        depth[target] = depth[source] + 1
    return tuple(hops)
