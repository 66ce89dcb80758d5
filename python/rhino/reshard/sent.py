"""What of a program is its own doing: through which device a host sends, when units first go, and who sends them.

Owns what is told of senders and of the order, and the choice of ports. Knows nothing about how programs are found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from rhino.reshard.data import Hop, MessageProgram, MovedTensor, Phase

# (start, stop, host): bytes of a bundle that the host was the first holder to send.
_Sent = tuple[int, int, int]


def ports_of(tensors: Iterable[MovedTensor], host_of: Mapping[int, int]) -> dict[int, int]:
    """The device through which each host of the tensors' tiles sends and receives; hosts with source tiles come first.

    XLA keeps connections by lists of devices, and messages of two programs on one list at a time mix. There and back
    have different lists, and neither is one that an axis of a mesh gives: the first host's port is its first device,
    the others' their last.
    """
    hosts: dict[int, list[int]] = {}
    senders: set[int] = set()
    for tensor in tensors:
        senders |= {host_of[tile.device] for tile in tensor.source}
        for tile in (*tensor.source, *tensor.target):
            hosts.setdefault(host_of[tile.device], []).append(tile.device)
    order = sorted(hosts, key=lambda host: (host not in senders, host))
    return {host: (max if at else min)(hosts[host]) for at, host in enumerate(order)}


def sender_on(holders: Iterable[int], port: int) -> int:
    """Of a host's devices that hold a unit the one that sends it: the port, which spares a copy, or else the first."""
    held = sorted(holders)
    return port if port in held else held[0]


def order_of(program: MessageProgram) -> tuple[int, ...]:
    """Positions of units by their first message; those without any come first, equal ones as they stand."""
    first = dict.fromkeys(range(len(program.units)), (-1, 0, 0))
    ends = [list(accumulate(program.units[unit].nbytes for unit in bundle)) for bundle in program.bundles]
    for number, phase in enumerate(program.phases):
        for at, step in enumerate(phase.steps):
            for hop in step.hops:
                for unit, period in reached(program, phase, hop, ends[hop.bundle]):
                    when = (number, period, at)
                    first[unit] = when if first[unit][0] < 0 else min(first[unit], when)
    return tuple(sorted(first, key=lambda unit: (first[unit], unit)))


def reached(program: MessageProgram, phase: Phase, hop: Hop, stops: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The units of which a hop has bytes, with the first period in which it has."""
    bundle = program.bundles[hop.bundle]
    past = hop.start + hop.stride * (phase.chunks - 1) + hop.length
    for at in range(bisect_right(stops, hop.start), len(bundle)):
        low, high = stops[at] - program.units[bundle[at]].nbytes, stops[at]
        if low >= past:
            return
        chunk = max(0, -(-(low - hop.start - hop.length + 1) // hop.stride)) if hop.stride else 0
        if hop.start + hop.stride * chunk < high and chunk + hop.lag < phase.periods:
            yield bundle[at], chunk + hop.lag


def senders_of(program: MessageProgram, host_of: Mapping[int, int]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Per unit (host, bytes), ascending: how many of its bytes a host that holds it was the first to send."""
    found: list[tuple[tuple[int, int], ...]] = [()] * len(program.units)
    holders = [{host_of[device] for device in program.units[bundle[0]].holders} for bundle in program.bundles]
    sizes = program.bundle_bytes
    moved = {hop.bundle for phase in program.phases for step in phase.steps for hop in step.hops}
    # What only one host holds needs no look at its thousands of chunks.
    sent: list[list[_Sent]] = [
        [(0, size, min(hosts))] if len(hosts) == 1 and number in moved else []
        for number, (hosts, size) in enumerate(zip(holders, sizes, strict=True))
    ]
    for phase in program.phases:
        hops = [(at, hop) for at, step in enumerate(phase.steps) for hop in step.hops]
        own = [(at, hop) for at, hop in hops if hop.source in holders[hop.bundle] and len(holders[hop.bundle]) > 1]
        chunks = [
            (chunk + hop.lag, at, hop, hop.start + hop.stride * chunk)
            for at, hop in own
            for chunk in range(min(phase.chunks if hop.stride else 1, phase.periods - hop.lag))
        ]
        for _, _, hop, start in sorted(chunks, key=lambda each: each[:2]):
            stop = min(start + hop.length, sizes[hop.bundle])
            sent[hop.bundle] = _with(sent[hop.bundle], start, stop, hop.source)
    for bundle, parts in zip(program.bundles, sent, strict=True):
        stop = 0
        for unit in bundle:
            start, stop = stop, stop + program.units[unit].nbytes
            each: dict[int, int] = {}
            for low, high, host in parts:
                if min(high, stop) > max(low, start):
                    each[host] = each.get(host, 0) + min(high, stop) - max(low, start)
            found[unit] = tuple(sorted(each.items()))
    return tuple(found)


def _with(parts: Sequence[_Sent], start: int, stop: int, host: int) -> list[_Sent]:
    """Ascending parts, and of [start, stop) what is in none of them; neighbours of one host are one."""
    free, at = [], start
    for low, high, _ in parts:
        if low >= stop:
            break
        if at < low:
            free.append((at, low, host))
        at = max(at, high)
    if at < stop:
        free.append((at, stop, host))
    joined: list[_Sent] = []
    for low, high, who in sorted([*parts, *free]):
        if joined and joined[-1][1:] == (low, who):
            joined[-1] = (joined[-1][0], high, who)
        else:
            joined.append((low, high, who))
    return joined
