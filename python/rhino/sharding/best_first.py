"""Sequences of things to try, taken step by step, the one next that promises most. Knows nothing of what is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TypeVar

T = TypeVar("T")


def best_first(sequences: Iterable[Iterator[T]], least: Callable[[T], float]) -> Iterator[bool]:
    """Takes the next step of that sequence whose next thing has the lowest bound, until all have ended.

    A sequence gives each thing before it tries it, in the step that follows: it can still leave it.

    Args:
      sequences: of equal bounds the earlier one goes first.
      least: the bound of a thing. It may rise while others are tried, and is asked again before a step.

    Yields: after each step, whether its sequence ended there.
    """
    waiting: list[tuple[float, int, T, Iterator[T]]] = []
    for number, sequence in enumerate(sequences):
        for thing in sequence:
            waiting.append((least(thing), number, thing, sequence))
            break
    heapify(waiting)
    while waiting:
        known, number, thing, sequence = heappop(waiting)
        bound = least(thing)
        if bound > known and waiting and waiting[0][:2] < (bound, number):
            heappush(waiting, (bound, number, thing, sequence))
            continue
        for following in sequence:
            heappush(waiting, (least(following), number, following, sequence))
            yield False
            break
        else:
            yield True
