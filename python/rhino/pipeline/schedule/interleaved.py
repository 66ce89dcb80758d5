"""Interleaved 1F1B: several stages per group, so that a pipeline fills and drains in shorter steps (arXiv 2104.04473).

Owns the order of computing. Correct for any number of micro-batches, any number of stages, and any graph of stages.
"""

from __future__ import annotations

from functools import cache

from rhino.pipeline.schedule.wiring import Step


def interleaved_order(stages: int, groups: int, microbatches: int) -> list[list[Step]]:
    """Per group, the forwards and backwards of the stages s = group, group + groups, ...

    Micro-batches go in rounds of `groups` through a group's stages. The order is Megatron's for stages and
    micro-batches rounded up to multiples of `groups`, without what is not there: taking a whole stage or micro-batch
    out of an order that respects a chain's dependencies leaves one that does, and a chain's dependencies imply those of
    any graph whose edges go from stages to later ones.
    """
    chunks = -(-stages // groups)
    rounds = -(-microbatches // groups)
    total = rounds * groups * chunks
    orders = []
    for group in range(groups):
        forwards = [_step("forward", i, group, groups, chunks) for i in range(total)]
        backwards = [_step("backward", i, group, groups, chunks) for i in range(total)]
        # With one stage per group this is 1F1B; with more, a group first fills all its stages but the last.
        first = groups - group - 1 if chunks == 1 else 2 * (groups - group - 1) + (chunks - 1) * groups
        first = min(first, total)
        order = forwards[:first]
        for forward, backward in zip(forwards[first:], backwards, strict=False):
            order += (forward, backward)
        order += backwards[total - first :]
        orders.append([step for step in order if step[1] < stages and step[2] < microbatches])
    return orders


def _step(kind: str, index: int, group: int, groups: int, chunks: int) -> Step:
    block, within = divmod(index, groups * chunks)
    chunk, lane = divmod(within, groups)
    if kind == "backward":
        chunk = chunks - 1 - chunk
    return kind, chunk * groups + group, block * groups + lane


@cache
def interleaved_in_flight(stages: int, groups: int, microbatches: int) -> tuple[int, ...]:
    """Per stage, the most micro-batches between their forward and their backward.

    Those of a group's stages are at their most at different times, so that together they hold no more than the sum.
    """
    now, most = [0] * stages, [0] * stages
    # After a group's first micro-batches go in and out in turn: more of them change nothing.
    sample = min(microbatches, 4 * stages)
    for order in interleaved_order(stages, groups, sample):
        for kind, stage, _ in order:
            now[stage] += 1 if kind == "forward" else -1
            most[stage] = max(most[stage], now[stage])
    return tuple(most)
