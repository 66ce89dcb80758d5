"""List schedules of whole units: who sends each, and in which order.

Owns three rules of thumb and the times that follow from an order. Knows strategies only by the time of a task.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import lcm

from rhino.reshard.data import Network
from rhino.reshard.units import BundleTask

# Seconds of a task from a sender.
Time = Callable[[BundleTask, int], Fraction]
# (task, sender) in order.
Order = tuple[tuple[BundleTask, int], ...]

# Task placements that `greedy` makes, over all of its tries.
_GREEDY_WORK = 4096


@dataclass(frozen=True, slots=True)
class ListSchedule:
    """An order of tasks with its times: `starts` in that order, and when the last task is over."""

    order: Order
    starts: tuple[Fraction, ...]
    makespan: Fraction


def timed(order: Order, time: Time) -> ListSchedule:
    """Each task starts when its sender and all hosts that it goes to are free, and holds them until it is over.

    Hosts that only send or only receive have one port in use, so this is the model of 2211.05322 §3.2; one that does
    both does them in turn, because a program has one order.
    """
    seconds = [time(task, sender) for task, sender in order]
    # In whole numbers of the common denominator: several times as fast as fractions.
    scale = lcm(*{each.denominator for each in seconds})
    free: dict[int, int] = {}
    starts = []
    end = 0
    for (task, sender), each in zip(order, seconds, strict=True):
        start = 0
        if task.targets:
            hosts = (sender, *task.targets)
            start = max(free.get(host, 0) for host in hosts)
            stop = start + each.numerator * (scale // each.denominator)
            for host in hosts:
                free[host] = stop
            end = max(end, stop)
        starts.append(Fraction(start, scale))
    return ListSchedule(order, tuple(starts), Fraction(end, scale))


def naive(tasks: Sequence[BundleTask]) -> Order:
    """The given order, always the first holder."""
    return tuple((task, task.holders[0]) for task in tasks)


def load_balance(tasks: Sequence[BundleTask], network: Network) -> Order:
    """Longest first, each from the holder that would be done with its bytes first; hosts in order where equal."""
    slowness = _slowness(network)
    sent: dict[int, int] = {}
    order = []
    for task in sorted(tasks, key=lambda task: (-task.nbytes, task.bundle)):
        sender = min(task.holders, key=lambda host: ((sent.get(host, 0) + task.nbytes) * slowness[host], host))
        if task.targets:
            sent[sender] = sent.get(sender, 0) + task.nbytes
        order.append((task, sender))
    return tuple(order)


def greedy(tasks: Sequence[BundleTask], network: Network, time: Time, seed: int) -> ListSchedule:
    """The best of some runs of randomised rounds (2211.05322 §3.2): a round is a set of tasks without a common host.

    Tasks are offered in random order; one that finds its hosts free takes the holder that has sent least so far.
    """
    generator = random.Random(seed)
    best: ListSchedule | None = None
    for _ in range(max(1, min(16, _GREEDY_WORK // max(1, len(tasks))))):
        schedule = timed(_rounds(tasks, network, generator), time)
        if best is None or schedule.makespan < best.makespan:
            best = schedule
    assert best is not None
    return best


def _rounds(tasks: Sequence[BundleTask], network: Network, generator: random.Random) -> Order:
    slowness = _slowness(network)
    hosts = {host for task in tasks for host in (*task.holders, *task.targets)}
    offered = list(tasks)
    generator.shuffle(offered)
    # Of tasks with the same hosts, a round that has no place for one has none for those behind it.
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], deque[tuple[int, BundleTask]]] = {}
    for place, task in enumerate(offered):
        alike.setdefault((task.holders, task.targets), deque()).append((place, task))
    queues = list(alike.values())
    sent: dict[int, int] = {}
    order = []
    while queues:
        busy: set[int] = set()
        heads = [(queue[0][0], at) for at, queue in enumerate(queues)]
        heapify(heads)
        while heads and len(busy) < len(hosts):
            _, at = heappop(heads)
            task = queues[at][0][1]
            sender = _least_sent(task, busy, sent, slowness)
            if sender is None:
                continue
            order.append((task, sender))
            queues[at].popleft()
            if queues[at]:
                heappush(heads, (queues[at][0][0], at))
            if task.targets:
                sent[sender] = sent.get(sender, 0) + task.nbytes
                busy.update((sender, *task.targets))
        queues = [queue for queue in queues if queue]
    return tuple(order)


def _least_sent(task: BundleTask, busy: set[int], sent: Mapping[int, int], slowness: Mapping[int, int]) -> int | None:
    """The holder to send a task in a round where some hosts are busy; None if it does not fit."""
    if not task.targets:
        return task.holders[0]
    if any(host in busy for host in task.targets):
        return None
    free = [host for host in task.holders if host not in busy]
    return min(free, key=lambda host: (sent.get(host, 0) * slowness[host], host)) if free else None


def _slowness(network: Network) -> dict[int, int]:
    """Seconds per byte of each host, in a unit that makes them whole numbers."""
    speed = network.bandwidth_bytes_s
    scale = lcm(*(each.numerator for each in speed.values()))
    return {host: each.denominator * (scale // each.numerator) for host, each in speed.items()}
