"""Programs at the bound: flows are cut into chunks, and all hops of a period into steps without conflicts.

Owns the steady state, in which every hop of every chain carries a chunk per period, and the number of chunks. Knows
strategies only as chains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isqrt, lcm

from rhino.reshard.checker import program_time
from rhino.reshard.data import Hop, MessageProgram, MessageStep, Network, Phase, Unit
from rhino.reshard.flows import BundleFlow, flows_of
from rhino.reshard.matchings import matchings, port_load
from rhino.reshard.programs import made_program
from rhino.reshard.strategies import LEAST_CHUNK_BYTES, chunk_bytes, fluid_chunks
from rhino.reshard.units import BundleTask

# A period may be longer by this share for the sake of few steps: what is not alike is padded to be so.
_PADDING = Fraction(1, 100)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one hop of one flow moves in a period, and how long that takes in ticks, padded."""

    flow: BundleFlow
    lag: int
    stride: int
    ticks: int


def optimal_program(
    tasks: Sequence[BundleTask],
    units: tuple[Unit, ...],
    bundles: tuple[tuple[int, ...], ...],
    network: Network,
    chunks: int | None,
) -> tuple[MessageProgram, int, list[BundleFlow]]:
    """The program at the bound, the number of chunks that its flows are cut into, and the flows.

    In a period each hop of each chain carries one chunk, hop j that of j periods ago, and nothing but the ports can be
    in conflict; matchings take as long as the busiest port, so that K chunks over at most D hops take (K + D - 1) / K
    times the bound, and latencies. K is what is given, or the best for the program's time.

    Args:
      tasks: of the bundles, no two with both the same holders and the same targets (`bundled`).
    """
    flows = flows_of(tasks, network)
    if not flows:
        return made_program(units, bundles, ()), 1, flows
    ticks = _ticks(network, flows)
    depth = max(flow.depth for flow in flows)
    if depth == 1:
        return made_program(units, bundles, [_phase(flows, 1, depth, ticks)]), 1, flows
    made: dict[int, MessageProgram] = {}
    once = _phase(flows, 1, depth, ticks)
    for count in _counts(once, flows, depth, network, chunks):
        made[count] = made_program(units, bundles, [_phase(flows, count, depth, ticks)])
    times = {count: program_time(program, network) for count, program in made.items()}
    best = min(made, key=lambda count: (times[count], count))
    return made[best], best, flows


def limit_time(flows: Sequence[BundleFlow], program: MessageProgram, network: Network) -> Fraction:
    """Seconds of the programs of flows in the limit of ever smaller chunks, where bandwidths differ.

    What K chunks take of K periods is then all there is: the time by which everything is later after one more period of
    all bytes, measured over 60 periods, when the start has worn off. Without chains it is that of `program`,
    one of these.
    """
    if not flows:
        return Fraction(0)
    if max(flow.depth for flow in flows) == 1:
        return program_time(program, network)
    ticks = _ticks(network, flows)
    steps = _steps(_pieces(flows, 1, ticks), ticks, 1)
    sixty, twice = (program_time(replace(program, phases=(Phase(60 * by, 1, steps),)), network) for by in (1, 2))
    return (twice - sixty) / 60


def fluid_time(flows: Iterable[BundleFlow], network: Network) -> Fraction:
    """Seconds of the busiest port, which flows take in the limit of ever smaller chunks and without latency."""
    speed = network.bandwidth_bytes_s
    loads: dict[tuple[int, int], Fraction] = {}
    for flow in flows:
        for source, target, _ in flow.hops:
            seconds = flow.nbytes / min(speed[source], speed[target])
            for port in ((source, 0), (target, 1)):
                loads[port] = loads.get(port, Fraction(0)) + seconds
    return max(loads.values(), default=Fraction(0))


def _ticks(network: Network, flows: Iterable[BundleFlow]) -> dict[tuple[int, int], int]:
    """Ticks of a byte on each link in use: whole numbers, all 1 where the bandwidths are equal."""
    speed = network.bandwidth_bytes_s
    links = sorted({(source, target) for flow in flows for source, target, _ in flow.hops})
    rates = {link: min(speed[link[0]], speed[link[1]]) for link in links}
    fastest = max(rates.values())
    scale = lcm(*((fastest / rate).denominator for rate in rates.values()))
    return {link: int(fastest / rate * scale) for link, rate in rates.items()}


def _counts(
    once: Phase, flows: Sequence[BundleFlow], depth: int, network: Network, chunks: int | None
) -> tuple[int, ...]:
    """Numbers of chunks worth trying. `once` is the period with one chunk."""
    most_items = max(flow.nbytes // flow.item_bytes for flow in flows)
    if chunks is not None:
        return (max(1, min(chunks, most_items)),)
    if not network.latency_s:
        return (max(1, min(fluid_chunks(depth), most_items)),)
    # So many that the steps of a period are still of 64 KiB on average.
    nbytes = sum(step.length for step in once.steps)
    most = max(1, min(most_items, nbytes // (len(once.steps) * LEAST_CHUNK_BYTES)))
    best = isqrt(int((depth - 1) * fluid_time(flows, network) / (network.latency_s * len(once.steps))))
    return tuple(sorted({max(1, min(count, most)) for count in (best // 2, best, best + 1, 2 * best)}))


def _phase(flows: Sequence[BundleFlow], count: int, depth: int, ticks: Mapping[tuple[int, int], int]) -> Phase:
    return Phase(count + depth - 1, count, _steps(_pieces(flows, count, ticks), ticks, count))


def _pieces(
    flows: Iterable[BundleFlow], count: int, ticks: Mapping[tuple[int, int], int]
) -> dict[tuple[int, int], list[_Piece]]:
    """The pieces of flows in so many chunks, by link."""
    pieces: dict[tuple[int, int], list[_Piece]] = {}
    for flow in flows:
        stride = chunk_bytes(flow.nbytes, count, flow.item_bytes)
        for source, target, lag in flow.hops:
            link = (source, target)
            pieces.setdefault(link, []).append(_Piece(flow, lag, stride, stride * ticks[link]))
    return pieces


def _steps(
    pieces: Mapping[tuple[int, int], Sequence[_Piece]], ticks: Mapping[tuple[int, int], int], count: int
) -> tuple[MessageStep, ...]:
    """The steps of a period: matchings of links, cut where a link goes on to its next piece."""
    grain = _grain(pieces)
    # Like with like, so that pieces end at the same time.
    queues = {
        link: sorted(
            ((piece, -(-piece.ticks // grain)) for piece in each),
            key=lambda each: (-each[1], each[0].flow.bundle, each[0].flow.start),
        )
        for link, each in sorted(pieces.items())
    }
    weights = {link: sum(size for _, size in queue) for link, queue in queues.items()}
    done = dict.fromkeys(queues, 0)  # grains of the first piece of each queue
    steps: list[MessageStep] = []
    for length, links in matchings(weights):
        while length:
            part = min(length, *(queues[link][0][1] - done[link] for link in links))
            hops = []
            for link in links:
                piece, size = queues[link][0]
                hop = _hop(link, piece, done[link] * grain, (done[link] + part) * grain, ticks[link], count)
                if hop is not None:
                    hops.append(hop)
                done[link] += part
                if done[link] == size:
                    queues[link].pop(0)
                    done[link] = 0
            steps += _alone(hops, ticks)
            length -= part
    return tuple(steps)


def _grain(pieces: Mapping[tuple[int, int], Sequence[_Piece]]) -> int:
    """The largest number of ticks whose multiples pad pieces so that the busiest port has at most 1 % more."""
    exact = {link: sum(piece.ticks for piece in each) for link, each in pieces.items()}
    most = port_load(exact) * (1 + _PADDING)
    sizes = sorted({piece.ticks for each in pieces.values() for piece in each}, reverse=True)
    counts: dict[tuple[int, int], dict[int, int]] = {}
    for link, each in pieces.items():
        counts[link] = {}
        for piece in each:
            counts[link][piece.ticks] = counts[link].get(piece.ticks, 0) + 1
    # The largest sizes decide; thousands of sizes need not all be tried.
    tried = sorted({-(-size // part) for size in sizes[:16] for part in (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128)})
    for grain in reversed(tried):
        padded = {
            link: sum(number * -(-size // grain) * grain for size, number in each.items())
            for link, each in counts.items()
        }
        if port_load(padded) <= most:
            return grain
    return 1


def _hop(link: tuple[int, int], piece: _Piece, start: int, stop: int, ticks: int, count: int) -> Hop | None:
    """The message of a piece from one tick to another, between items; None if all of it is padding."""
    item = piece.flow.item_bytes
    low = min(start // ticks // item * item, piece.stride)
    high = piece.stride if stop >= piece.ticks else stop // ticks // item * item
    if high <= low:
        return None
    stride = piece.stride if count > 1 else 0
    return Hop(link[0], link[1], piece.flow.bundle, piece.flow.start + low, high - low, stride, piece.lag)


def _alone(hops: Sequence[Hop], ticks: Mapping[tuple[int, int], int]) -> list[MessageStep]:
    """A matching as steps: one, or several of hops without common hosts where links differ in speed.

    Messages of a step are padded to the longest, which a slow link would wait for.
    """
    if len({ticks[hop.source, hop.target] for hop in hops}) <= 1:
        return [MessageStep(tuple(hops))] if hops else []
    groups: list[list[Hop]] = []
    for hop in hops:
        ends = {hop.source, hop.target}
        near = [group for group in groups if any(ends & {other.source, other.target} for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), hop])
    return [MessageStep(tuple(group)) for group in groups]
