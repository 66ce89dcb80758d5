"""What computing hides in loops, and around them, where other collectives are in the way.

XLA runs one collective at a time beside computing. Owns what a plan can hide in the trips of its loops, and in the
program around them (`rhino.sharding.trips`). The program that is solved does not know it: `rhino.sharding.clearing`
does what can be done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rhino.sharding.combining import become_one
from rhino.sharding.costs import Costs, States
from rhino.sharding.layout import RouteStep
from rhino.sharding.trips import Beside, Stream, Trip, TripPart, trip_seconds
from rhino.xla import BackEnd
from rhino.xla.backends import BESIDE

# Per tied transfer, the collectives that it makes in each trip, and seconds of each.
MadeEach = Mapping[int, Sequence[tuple[RouteStep, float]]]


def hidden_in_trips(costs: Costs, states: Sequence[States], made: MadeEach) -> dict[int, float]:
    """Per window, the seconds of collectives that have computing beside them.

    A trip is simulated with all collectives of parameters and gradients where they can be made, combined as XLA is told
    to.
    """
    found: dict[int, float] = defaultdict(float)
    told = costs.back_end.told(BESIDE)
    for trip in costs.hiding.trips:
        parts, others = _in_trip(costs, states, made, trip)
        alone_s = sum(part.seconds for part in parts) + sum(one.seconds for _, one in others)
        least_s = trip_seconds(parts, _combined(costs, told, others))
        found[trip.window] += trip.executions * (alone_s - least_s)
    return found


def _in_trip(
    costs: Costs, states: Sequence[States], made: MadeEach, trip: Trip
) -> tuple[list[TripPart], list[tuple[RouteStep, Beside]]]:
    """What a trip of a plan does in order, and the collectives that can be beside it."""
    parts = [TripPart(at, stream, share * costs.node_parts(k, states[k])[0]) for at, stream, k, share in trip.computed]
    parts += [TripPart(at, Stream.LOOPS, 0.0) for at in trip.loops]
    others: list[tuple[RouteStep, Beside]] = []
    for at, k in trip.lost:
        parts += [TripPart(at, Stream.WAITS, seconds) for seconds, _, _ in costs.losses(k, states[k])]
    for at, index, ready, due in trip.sent:
        steps = made.get(index, ())
        if index in costs.hideable and index not in costs.beside:
            others += [(step, Beside(seconds, ready, due)) for step, seconds in steps]
        else:
            parts += [TripPart(at, Stream.WAITS, seconds) for _, seconds in steps]
    return parts, others


def _combined(costs: Costs, back_end: BackEnd, steps: Sequence[tuple[RouteStep, Beside]]) -> list[Beside]:
    """What XLA makes of collectives: those of a kind over the same axes become one, up to its limit."""
    made = (
        ((step.kind, step.axes), step.result_bytes(costs.sizes), back_end.combined_bytes(step.kind), one)
        for step, one in sorted(steps, key=lambda step: step[1][1:])
    )
    return [
        Beside(sum(one.seconds for one in ones), max(one.ready for one in ones), min(one.due for one in ones))
        for ones in become_one(made)
    ]
