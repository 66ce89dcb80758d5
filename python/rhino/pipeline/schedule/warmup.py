"""How many forwards each stage runs before its first backward: the table of the known schedules, and a choice by cost.

Owns the counts, which decide both memory and how much of a transfer is hidden. A count never rises along an edge; that
alone keeps lists that alternate after it free of deadlock, on any graph of stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from rhino.errors import NothingFits
from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.period import steady_period_s

_CLOSE = 1e-9


def warmup_counts(name: str, depths: Iterable[int], microbatches: int, k: int = 1) -> tuple[int, ...]:
    """The counts of gpipe, 1f1b, eager-1f1b or kfkb, which are also the micro-batches that each stage has in flight.

    1F1B keeps as many in flight as stages follow, eager-1F1B (arXiv 2211.05322) twice that less one, kFkB k times that.

    Args:
      depths: by stage, the stages on the longest path to a last one, as `PipelineCosts.depths`; n - i in a chain.
    """

    def count(depth: int) -> int:
        return {"gpipe": microbatches, "1f1b": depth, "eager-1f1b": 2 * depth - 1, "kfkb": k * depth}[name]

    return tuple(min(microbatches, count(depth)) for depth in depths)


def choose_warmup(costs: PipelineCosts, microbatches: int, delay_weight: bool = False) -> tuple[int, ...]:
    """The smallest counts that hide every transfer, or what comes closest to it in the memory there is.

    Along an edge the counts differ by at least 1 + 2c / (f + b), rounded up: 1F1B's difference of 1 where c is 0,
    eager-1F1B's of 2 up to c = (f + b) / 2, more for slower links, and less before stages that are faster than others.

    Raises:
      RhinoError: a group has no room for the activations of one micro-batch.
    """
    rooms = _rooms(costs, microbatches)
    period = max(f + b for f, b in zip(costs.forward_s, costs.backward_s, strict=True))
    wanted = _counts(costs, period, 1.0)
    counts = tuple(min(w, r) for w, r in zip(wanted, rooms, strict=True))
    if counts == tuple(min(w, microbatches) for w in wanted):
        return counts
    # Memory is short: start from every share of the transfers hidden, and move single counts while that helps.
    starts = [_counts(costs, period, share / 4) for share in range(5)]
    fitting = [tuple(min(w, r) for w, r in zip(start, rooms, strict=True)) for start in starts]
    return min((_descend(costs, start, rooms, delay_weight) for start in fitting), key=lambda found: found[0])[1]


def _counts(costs: PipelineCosts, period: float, share: float) -> tuple[int, ...]:
    """Counts that hide `share` of every transfer at this period, one at the last stages."""
    work = [f + b for f, b in zip(costs.forward_s, costs.backward_s, strict=True)]
    counts = [1] * costs.stages
    for edge in sorted(costs.edges, key=lambda e: e.src, reverse=True):
        # The cycle along a path of p edges holds p + 1 stages' work and both transfers of each edge, and as many
        # micro-batches as its counts differ plus one; half of either stage's work per edge leaves one period over.
        transfers = share * ((edge.forward_s or 0.0) + (edge.backward_s or 0.0))
        need = ((work[edge.src] + work[edge.dst]) / 2 + transfers) / period if period > 0 else 1.0
        counts[edge.src] = max(counts[edge.src], counts[edge.dst] + max(1, ceil(need - _CLOSE)))
    return tuple(counts)


def _rooms(costs: PipelineCosts, microbatches: int) -> list[int]:
    """The most each stage may count: what fits, and never more than the stages before it."""
    rooms = []
    for stage in range(costs.stages):
        room = costs.room(stage)
        if room == 0:
            group = costs.groups[stage]
            free = costs.limit_bytes[group] - costs.static_bytes[group]
            raise NothingFits(
                f"stage {stage} saves {costs.activation_bytes[stage]} bytes per micro-batch, but group {group} has "
                f"{max(free, 0)} left", "use more micro-batches, which are smaller, or more stages")  # fmt: skip
        rooms.append(microbatches if room is None else min(room, microbatches))
    for edge in sorted(costs.edges, key=lambda e: e.dst):
        rooms[edge.dst] = min(rooms[edge.dst], rooms[edge.src])
    return rooms


def _descend(
    costs: PipelineCosts, counts: tuple[int, ...], rooms: Sequence[int], delay_weight: bool
) -> tuple[tuple[float, int], tuple[int, ...]]:
    """Changes of one count at a time, the first that helps: a shorter period, or an equal one with less in flight."""

    def score(candidate: tuple[int, ...]) -> tuple[float, int]:
        in_flight = sum(c * a for c, a in zip(candidate, costs.activation_bytes, strict=True))
        return steady_period_s(costs, candidate, delay_weight), in_flight

    best = score(counts)
    improved = True
    while improved:
        improved = False
        for stage in range(costs.stages):
            for change in (-1, 1):
                candidate = (*counts[:stage], counts[stage] + change, *counts[stage + 1 :])
                if not 1 <= candidate[stage] <= rooms[stage] or falls_short(costs, candidate):
                    continue
                found = score(candidate)
                shorter = found[0] < best[0] * (1 - _CLOSE)
                if shorter or (found[0] <= best[0] * (1 + _CLOSE) and found[1] < best[1]):
                    best, counts, improved = found, candidate, True
    return best, counts


def falls_short(costs: PipelineCosts, counts: Sequence[int]) -> tuple[int, int] | None:
    """An edge along which the counts rise, so that its stages would wait for each other; None if there is none."""
    return next(((e.src, e.dst) for e in costs.edges if counts[e.src] < counts[e.dst]), None)
