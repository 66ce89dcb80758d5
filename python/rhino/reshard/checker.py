"""Runs a program without data: that every message has its bytes, that all arrive, and how long it takes.

Owns what a valid program is. Shares nothing with the makers of programs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import lcm

from rhino.errors import RhinoError
from rhino.reshard.data import Hop, MessageProgram, Network, Phase
from rhino.reshard.sent import reached
from rhino.reshard.units import hosts_of

_REMEDY = "plan the transfer again"


def check_program(program: MessageProgram, network: Network) -> None:
    """Proves that each host has the bytes it sends when it sends them, and each receiver's host its units at the end.

    Raises:
      RhinoError: naming the hop, "phase 0 period 3 step 1: bundle 2 from host 0 to host 4: ..", or the unit that lacks
        bytes at the end.
    """
    ends = _ends(program, network)
    _check_bundles(program, ends)
    sizes = program.bundle_bytes
    have: list[dict[int, list[tuple[int, int]]]] = [
        {host: [(0, size)] for host in ends[bundle[0]][0]} for bundle, size in zip(program.bundles, sizes, strict=True)
    ]
    # What became of a bundle in the first phase of its kind: thousands of phases are alike but for their bundle.
    became: dict[object, dict[int, list[tuple[int, int]]]] = {}
    moved: set[int] = set()
    for number, phase in enumerate(program.phases):
        bundles = {hop.bundle for step in phase.steps for hop in step.hops}
        only = min(bundles, default=-1)
        key = None
        if len(bundles) == 1 and 0 <= only < len(have) and only not in moved:
            key = (phase.periods, phase.chunks, _messages(phase), sizes[only], ends[program.bundles[only][0]])
        moved |= bundles
        if key in became:
            have[only] = _copied(became[key])
            continue
        _check_phase(phase, f"phase {number}", program)
        for period in range(phase.periods):
            _go(phase, number, period, sizes, have)
        if key is not None:
            became[key] = _copied(have[only])
    for bundle, there in zip(program.bundles, have, strict=True):
        start = 0
        for unit in bundle:
            stop = start + program.units[unit].nbytes
            for host in ends[unit][1]:
                missing = _missing(there.get(host, ()), start, stop)
                if missing is not None:
                    raise RhinoError(
                        f"unit {unit}: host {host} has no byte {missing - start} of it at the end", _REMEDY
                    )
            start = stop


def _messages(phase: Phase) -> object:
    """What a phase with one bundle does, whichever bundle it is."""
    return tuple(
        tuple([(hop.source, hop.target, hop.start, hop.length, hop.stride, hop.lag) for hop in step.hops])
        for step in phase.steps
    )


def _copied(there: Mapping[int, list[tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
    return {host: list(ranges) for host, ranges in there.items()}


def _ends(program: MessageProgram, network: Network) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Per unit the hosts that hold it and the others that need it, ascending."""
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]] = {}
    hosts = hosts_of(network)
    ends = []
    for at, unit in enumerate(program.units):
        if unit.index != at:
            raise RhinoError(f"unit {unit.index} of the program is at position {at}", _REMEDY)
        key = (unit.holders, unit.receivers)
        if key not in known:
            holders, wanting = (set(hosts(devices)) for devices in key)
            known[key] = (tuple(sorted(holders)), tuple(sorted(wanting - holders)))
        ends.append(known[key])
    return ends


def _check_bundles(program: MessageProgram, ends: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    seen: dict[int, int] = {}
    for number, bundle in enumerate(program.bundles):
        if not bundle:
            raise RhinoError(f"bundle {number}: no unit", _REMEDY)
        for unit in bundle:
            if not 0 <= unit < len(program.units):
                raise RhinoError(f"bundle {number}: unit {unit}, but there are {len(program.units)} units", _REMEDY)
            if unit in seen:
                raise RhinoError(f"bundle {number}: unit {unit} is in bundle {seen[unit]} already", _REMEDY)
            if ends[unit] != ends[bundle[0]]:
                raise RhinoError(f"bundle {number}: units {bundle[0]} and {unit} have different hosts", _REMEDY)
            seen[unit] = number
    for unit, (_, wanting) in enumerate(ends):
        if wanting and unit not in seen:
            raise RhinoError(f"unit {unit}: host {wanting[0]} needs it, but it is in no bundle", _REMEDY)


def _check_phase(phase: Phase, place: str, program: MessageProgram) -> None:
    if phase.periods < 1 or phase.chunks < 1:
        raise RhinoError(f"{place}: {phase.periods} periods of {phase.chunks} chunks", _REMEDY)
    known = set(program.hosts)
    for at, step in enumerate(phase.steps):
        if not step.hops:
            raise RhinoError(f"{place} step {at}: no message", _REMEDY)
        sources, targets = [hop.source for hop in step.hops], [hop.target for hop in step.hops]
        for ends, word in ((sources, "source"), (targets, "target")):
            if len(set(ends)) < len(ends):
                host = next(host for host in ends if ends.count(host) > 1)
                raise RhinoError(f"{place} step {at}: host {host} is the {word} of two messages", _REMEDY)
        for hop in step.hops:
            wrong = None
            if hop.source == hop.target or hop.source not in known or hop.target not in known:
                wrong = "it is not between two hosts of the program"
            elif not 0 <= hop.bundle < len(program.bundles):
                wrong = f"there are {len(program.bundles)} bundles"
            elif hop.length < 1 or hop.start < 0 or hop.stride < 0 or hop.lag < 0:
                wrong = f"its bytes are [{hop.start}, +{hop.length}), stride {hop.stride}"
            if wrong:
                raise RhinoError(f"{place} step {at}: {_named(hop)}: {wrong}", _REMEDY)


def _go(
    phase: Phase, number: int, period: int, sizes: Sequence[int], have: Sequence[dict[int, list[tuple[int, int]]]]
) -> None:
    """A period: what a step sends has to be there before it, and is there after it."""
    for at, step in enumerate(phase.steps):
        arrived = []
        for hop in step.hops:
            chunk = period - hop.lag
            if not 0 <= chunk < phase.chunks:
                continue
            start = hop.start + hop.stride * chunk
            stop = min(start + hop.length, sizes[hop.bundle])
            if start >= stop:
                continue
            there = have[hop.bundle]
            missing = _missing(there.get(hop.source, ()), start, stop)
            if missing is not None:
                place = f"phase {number} period {period} step {at}: {_named(hop)}"
                raise RhinoError(f"{place}: host {hop.source} does not have byte {missing} then", _REMEDY)
            arrived.append((there, hop.target, start, stop))
        for there, host, start, stop in arrived:
            _add(there.setdefault(host, []), start, stop)


def _named(hop: Hop) -> str:
    return f"bundle {hop.bundle} from host {hop.source} to host {hop.target}"


def _missing(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> int | None:
    """The first byte of [start, stop) that ascending ranges, which do not touch, lack."""
    for low, high in ranges:
        if low <= start < high:
            return None if stop <= high else high
    return start


def _add(ranges: list[tuple[int, int]], start: int, stop: int) -> None:
    """Adds [start, stop) to ascending ranges, joining what touches."""
    if ranges and ranges[-1][0] <= start <= ranges[-1][1]:
        # The usual case: the next chunk.
        ranges[-1] = (ranges[-1][0], max(ranges[-1][1], stop))
        return
    apart = []
    for low, high in ranges:
        if high < start or low > stop:
            apart.append((low, high))
        else:
            start, stop = min(low, start), max(high, stop)
    insort(apart, (start, stop))
    ranges[:] = apart


def program_time(program: MessageProgram, network: Network) -> Fraction:
    """Seconds of a program: hosts go through the steps in order, a message starts when both of its ends are there.

    It lasts the latency and the step's length (messages of a step are padded to the longest) over the bandwidth of its
    slower end; a host leaves a step when its messages are over. Periods in which a hop has nothing to move count as
    others: the message is sent all the same.
    """
    clock, _, scale = _run(program, network)
    return Fraction(max(clock.values(), default=0), scale)


def unit_starts(program: MessageProgram, network: Network) -> dict[int, Fraction]:
    """When the first message with bytes of each unit that has any starts, by the same rules."""
    _, went, scale = _run(program, network)
    ends = [list(accumulate(program.units[unit].nbytes for unit in bundle)) for bundle in program.bundles]
    starts: dict[int, int] = {}
    for phase, (begun, shift) in zip(program.phases, went, strict=True):
        for number, hop in enumerate(hop for step in phase.steps for hop in step.hops):
            for unit, period in reached(program, phase, hop, ends[hop.bundle]):
                known = min(period, len(begun) - 1)
                time = begun[known][number] + shift * (period - known)
                starts[unit] = min(time, starts.get(unit, time))
    return {unit: Fraction(time, scale) for unit, time in starts.items()}


# Of a phase: for its first periods the start of every hop, in ticks, and how much later those of each further one are.
_Went = tuple[list[list[int]], int]


def _run(program: MessageProgram, network: Network) -> tuple[dict[int, int], list[_Went], int]:
    """When each host is done, how each phase went, and ticks per second."""
    speed = network.bandwidth_bytes_s
    seconds: dict[tuple[int, int, int], Fraction] = {}
    for phase in program.phases:
        for step in phase.steps:
            length = step.length
            for hop in step.hops:
                key = (hop.source, hop.target, length)
                if key not in seconds:
                    seconds[key] = network.latency_s + length / min(speed[hop.source], speed[hop.target])
    # In whole numbers of the common denominator: ten times as fast as fractions.
    scale = lcm(*(each.denominator for each in seconds.values()))
    ticks = {key: int(each * scale) for key, each in seconds.items()}
    clock: dict[int, int] = dict.fromkeys(program.hosts, 0)
    return clock, [_through(phase, ticks, clock) for phase in program.phases], scale


def _through(phase: Phase, ticks: Mapping[tuple[int, int, int], int], clock: dict[int, int]) -> _Went:
    """All periods of a phase. Once each of its hosts is a period later by the same amount, so it is by all others."""
    hosts = sorted({host for step in phase.steps for hop in step.hops for host in (hop.source, hop.target)})
    lengths = [step.length for step in phase.steps]
    begun: list[list[int]] = []
    for period in range(phase.periods):
        before = [clock[host] for host in hosts]
        starts = []
        for step, length in zip(phase.steps, lengths, strict=True):
            over: dict[int, int] = {}
            for hop in step.hops:
                start = max(clock[hop.source], clock[hop.target])
                starts.append(start)
                stop = start + ticks[hop.source, hop.target, length]
                over[hop.source] = max(over.get(hop.source, 0), stop)
                over[hop.target] = max(over.get(hop.target, 0), stop)
            clock.update(over)
        begun.append(starts)
        shifts = {clock[host] - time for host, time in zip(hosts, before, strict=True)}
        if len(shifts) == 1:
            shift = shifts.pop()
            for host in hosts:
                clock[host] += shift * (phase.periods - 1 - period)
            return begun, shift
    return begun, 0
