"""Transfers over links in time: those from one group to another one after another, those of others at once.

Owns how fast each goes. Knows nothing of tasks and schedules.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class LinkTransfer(Generic[T]):
    """One transfer.

    Attributes:
      what: the caller's.
      lane: from which group to which.
      links: what it occupies.
      left_s: what it would still take by itself, as of `since_s`.
      number: in the order in which they are sent.
      start_s: when it came to the head of its lane.
      sharers: the most transfers on any of its links, itself among them; it goes that much slower. 0 while it waits.
      end_s: when it arrives if nothing changes; infinity before and after.
    """

    what: T
    lane: tuple[int, int]
    links: tuple[str, ...]
    left_s: float
    number: int
    start_s: float = 0.0
    since_s: float = 0.0
    sharers: int = 0
    end_s: float = inf


class Links(Generic[T]):
    """Links that give the transfers on them equal parts, as TCP does; a transfer goes as fast as its smallest part.

    Transfers of a lane wait for each other, as messages of one connection do.
    """

    def __init__(self) -> None:
        self._lanes: dict[tuple[int, int], deque[LinkTransfer[T]]] = {}
        self._on: dict[str, dict[int, LinkTransfer[T]]] = {}
        # By end and order; what ends at another time by now is skipped.
        self._ends: list[tuple[float, int, LinkTransfer[T]]] = []
        self._count = 0

    def send(self, what: T, lane: tuple[int, int], links: tuple[str, ...], seconds: float, now: float) -> None:
        """Start a transfer that takes so long by itself, or let it wait for those before it in its lane."""
        transfer = LinkTransfer(what, lane, links, seconds, self._count)
        self._count += 1
        waiting = self._lanes.setdefault(lane, deque())
        waiting.append(transfer)
        if len(waiting) == 1:
            self._begin(transfer, now)

    def next_end_s(self) -> float:
        """When the next transfer arrives if nothing is sent before; infinity if none is under way."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][2].end_s:
            heappop(ends)
        return ends[0][0] if ends else inf

    def arrive(self) -> LinkTransfer[T]:
        """The transfer that arrives next, off its links from now on."""
        now = self.next_end_s()
        transfer = heappop(self._ends)[2]
        transfer.end_s = inf
        for link in transfer.links:
            del self._on[link][transfer.number]
        lane = self._lanes[transfer.lane]
        lane.popleft()
        if lane:
            self._begin(lane[0], now)
        self._divide(transfer.links, now)
        return transfer

    def _begin(self, transfer: LinkTransfer[T], now: float) -> None:
        transfer.start_s = transfer.since_s = now
        for link in transfer.links:
            self._on.setdefault(link, {})[transfer.number] = transfer
        self._divide(transfer.links, now)

    def _divide(self, links: tuple[str, ...], now: float) -> None:
        """Settle what is done of the transfers on these links, and when they now end."""
        for link in links:
            for transfer in self._on[link].values():
                sharers = max(len(self._on[each]) for each in transfer.links)
                if sharers == transfer.sharers:
                    continue
                if transfer.sharers:
                    transfer.left_s = max(0.0, transfer.left_s - (now - transfer.since_s) / transfer.sharers)
                transfer.since_s, transfer.sharers, transfer.end_s = now, sharers, now + transfer.left_s * sharers
                heappush(self._ends, (transfer.end_s, transfer.number, transfer))
