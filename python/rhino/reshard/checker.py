"""Runs a program without data: that every message has its bytes, that all arrive, and how long it takes.

Owns what a valid program is. Shares nothing with the makers of programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

from rhino.errors import RhinoError
from rhino.reshard.data import Hop, Network, Phase, Program, Step
from rhino.reshard.units import host_of

_REMEDY = "plan the transfer again"


def check_program(program: Program, network: Network) -> None:
    """Proves that each host has the bytes it sends when it sends them, and each receiver's host its units at the end.

    Raises:
      RhinoError: naming the hop, "phase 0 period 3 step 1: unit 2 from host 0 to host 4: ..", or the unit that lacks
        bytes at the end.
    """
    holders = [{host_of(network, device) for device in unit.holders} for unit in program.units]
    have: list[dict[int, list[tuple[int, int]]]] = [
        {host: [(0, unit.nbytes)] for host in sorted(hosts)} for unit, hosts in zip(program.units, holders, strict=True)
    ]
    for at, unit in enumerate(program.units):
        if unit.index != at:
            raise RhinoError(f"unit {unit.index} of the program is at position {at}", _REMEDY)
    for number, phase in enumerate(program.phases):
        _check_phase(phase, f"phase {number}", program)
        for period in range(phase.periods):
            for at, step in enumerate(phase.steps):
                _go(step, phase.chunks, period, f"phase {number} period {period} step {at}", program, have)
    for unit in program.units:
        for host in sorted({host_of(network, device) for device in unit.receivers}):
            missing = _missing(have[unit.index].get(host, []), 0, unit.nbytes)
            if missing is not None:
                raise RhinoError(f"unit {unit.index}: host {host} has no byte {missing} of it at the end", _REMEDY)


def _check_phase(phase: Phase, place: str, program: Program) -> None:
    if phase.periods < 1 or phase.chunks < 1:
        raise RhinoError(f"{place}: {phase.periods} periods of {phase.chunks} chunks", _REMEDY)
    for at, step in enumerate(phase.steps):
        if not step.hops:
            raise RhinoError(f"{place} step {at}: no message", _REMEDY)
        for ends, word in (
            ([hop.source for hop in step.hops], "source"),
            ([hop.target for hop in step.hops], "target"),
        ):
            for host in ends:
                if ends.count(host) > 1:
                    raise RhinoError(f"{place} step {at}: host {host} is the {word} of two messages", _REMEDY)
        for hop in step.hops:
            where = f"{place} step {at}: {_named(hop)}"
            if hop.source == hop.target or not {hop.source, hop.target} <= set(program.hosts):
                raise RhinoError(f"{where}: it is not between two hosts of the program", _REMEDY)
            if not 0 <= hop.unit < len(program.units):
                raise RhinoError(f"{where}: there are {len(program.units)} units", _REMEDY)
            if hop.length < 1 or hop.start < 0 or hop.stride < 0 or hop.lag < 0:
                raise RhinoError(f"{where}: its bytes are [{hop.start}, +{hop.length}), stride {hop.stride}", _REMEDY)


def _go(
    step: Step,
    chunks: int,
    period: int,
    place: str,
    program: Program,
    have: Sequence[dict[int, list[tuple[int, int]]]],
) -> None:
    """One step: what it sends has to be there before it, and is there after it."""
    arrived = []
    for hop in step.hops:
        if not 0 <= period - hop.lag < chunks:
            continue
        start = hop.start + hop.stride * (period - hop.lag)
        stop = min(start + hop.length, program.units[hop.unit].nbytes)
        if start >= stop:
            continue
        missing = _missing(have[hop.unit].get(hop.source, []), start, stop)
        if missing is not None:
            raise RhinoError(f"{place}: {_named(hop)}: host {hop.source} does not have byte {missing} then", _REMEDY)
        arrived.append((hop, start, stop))
    for hop, start, stop in arrived:
        _add(have[hop.unit].setdefault(hop.target, []), start, stop)


def _named(hop: Hop) -> str:
    return f"unit {hop.unit} from host {hop.source} to host {hop.target}"


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
    apart = [each for each in ranges if each[1] < start or each[0] > stop]
    touching = [each for each in ranges if not (each[1] < start or each[0] > stop)]
    low = min([start, *(each[0] for each in touching)])
    high = max([stop, *(each[1] for each in touching)])
    ranges[:] = sorted([*apart, (low, high)])


def program_time(program: Program, network: Network) -> Fraction:
    """Seconds of a program: hosts go through the steps in order, a message starts when both of its ends are there.

    It lasts the latency and the step's length (messages of a step are padded to the longest) over the bandwidth of its
    slower end; a host leaves a step when its messages are over. Periods in which a hop has nothing to move count as
    others: the message is sent all the same.
    """
    return max(_times(program, network)[0].values(), default=Fraction(0))


def unit_starts(program: Program, network: Network) -> dict[int, Fraction]:
    """When the first message of each unit that has any starts, by the same rules."""
    return _times(program, network)[1]


def _times(program: Program, network: Network) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
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
    starts: dict[int, int] = {}
    for phase in program.phases:
        _through(phase, ticks, clock, starts)
    return (
        {host: Fraction(time, scale) for host, time in clock.items()},
        {unit: Fraction(time, scale) for unit, time in starts.items()},
    )


def _through(
    phase: Phase, ticks: Mapping[tuple[int, int, int], int], clock: dict[int, int], starts: dict[int, int]
) -> None:
    """All periods of a phase. Once each of its hosts is a period later by the same amount, so it is by all others."""
    hosts = sorted({host for step in phase.steps for hop in step.hops for host in (hop.source, hop.target)})
    lengths = [step.length for step in phase.steps]
    for period in range(phase.periods):
        before = [clock[host] for host in hosts]
        for step, length in zip(phase.steps, lengths, strict=True):
            over: dict[int, int] = {}
            for hop in step.hops:
                start = max(clock[hop.source], clock[hop.target])
                if period >= hop.lag:
                    starts.setdefault(hop.unit, start)
                stop = start + ticks[hop.source, hop.target, length]
                over[hop.source] = max(over.get(hop.source, 0), stop)
                over[hop.target] = max(over.get(hop.target, 0), stop)
            clock.update(over)
        shifts = {clock[host] - time for host, time in zip(hosts, before, strict=True)}
        if len(shifts) == 1 and not any(hop.lag > period for step in phase.steps for hop in step.hops):
            shift = shifts.pop()
            for host in hosts:
                clock[host] += shift * (phase.periods - 1 - period)
            return
