"""Branch and bound over list schedules of whole units: orders and senders, up to a number of nodes.

Owns what is tried and what is left out. Knows strategies only by the time of a task; never looks at a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from rhino.reshard.lists import ListSchedule, Time, timed
from rhino.reshard.units import BundleTask

# Tried placements per second of the time limit, what a slow machine manages: a fixed rate keeps plans deterministic.
_PLACEMENTS_PER_S = 8_000
# The tree is as deep as there are tasks; with more it would not leave the neighbourhood of its first path.
_MOST_TASKS = 128


def search(tasks: Sequence[BundleTask], time: Time, start: ListSchedule, time_limit_s: float) -> ListSchedule:
    """The best schedule found, `start` if none is better; it is optimal among list schedules if the tree was exhausted.

    Tasks that are alike are tried in one order only, and so are schedules that differ only in the order in which they
    are written down: tasks are placed by non-decreasing start.
    """
    moved = [task for task in tasks if task.targets]
    if not moved or len(moved) > _MOST_TASKS:
        return start
    tree = _Tree(moved, time, int(time_limit_s * _PLACEMENTS_PER_S))
    found = tree.best_below(start.makespan)
    if found is None:
        return start
    stay = [(task, task.holders[0]) for task in tasks if not task.targets]
    return timed((*stay, *found), time)


@dataclass(slots=True)
class _Group:
    """Tasks that are alike, and the whole ticks of each from each holder."""

    tasks: list[BundleTask]
    senders: tuple[int, ...]
    targets: tuple[int, ...]
    ticks: tuple[int, ...] = ()
    left: int = 0


@dataclass(slots=True)
class _Tree:
    """The state of one search: what is placed, when each host is free, how much is left for each set of hosts."""

    moved: Sequence[BundleTask]
    time: Time
    budget: int
    groups: list[_Group] = field(init=False)
    scale: int = field(init=False)
    free: dict[int, int] = field(init=False)
    # Per set of hosts, the ticks that still have to be spent on one of them.
    loads: list[int] = field(init=False)
    sets: list[tuple[int, ...]] = field(init=False)
    loads_of: list[tuple[int, ...]] = field(init=False)
    placed: list[tuple[int, int]] = field(init=False)
    best: int = field(init=False)
    found: list[tuple[int, int]] | None = field(init=False)

    def __post_init__(self) -> None:
        alike: dict[tuple[object, ...], _Group] = {}
        for task in self.moved:
            key = (task.holders, task.targets, task.receivers, task.nbytes, task.item_bytes)
            alike.setdefault(key, _Group([], task.holders, task.targets)).tasks.append(task)
        self.groups = sorted(alike.values(), key=lambda group: (-group.tasks[0].nbytes, group.tasks[0].bundle))
        seconds = [[self.time(group.tasks[0], sender) for sender in group.senders] for group in self.groups]
        self.scale = lcm(*(each.denominator for row in seconds for each in row))
        for group, row in zip(self.groups, seconds, strict=True):
            group.ticks = tuple(int(each * self.scale) for each in row)
            group.left = len(group.tasks)
        self.free = {host: 0 for group in self.groups for host in (*group.senders, *group.targets)}
        self.sets = sorted({*(group.senders for group in self.groups), *((host,) for host in self.free)})
        self.loads_of = []
        for group in self.groups:
            members = tuple(
                at
                for at, hosts in enumerate(self.sets)
                if set(group.senders) <= set(hosts) or (len(hosts) == 1 and hosts[0] in group.targets)
            )
            self.loads_of.append(members)
        self.loads = [0] * len(self.sets)
        for group, members in zip(self.groups, self.loads_of, strict=True):
            for at in members:
                self.loads[at] += min(group.ticks) * group.left
        self.placed = []
        self.found = None

    def best_below(self, makespan: Fraction) -> tuple[tuple[BundleTask, int], ...] | None:
        """The order of the best schedule that is shorter than `makespan`, None if none was found."""
        self.best = int(makespan * self.scale)
        if self._bound() < self.best:
            self._extend(0, 0, len(self.moved))
        if self.found is None:
            return None
        taken = [0] * len(self.groups)
        order = []
        for number, sender in self.found:
            order.append((self.groups[number].tasks[taken[number]], sender))
            taken[number] += 1
        return tuple(order)

    def _bound(self) -> int:
        """No schedule that goes on from here ends earlier: each set of hosts has to do what is left for it."""
        most = 0
        for hosts, load in zip(self.sets, self.loads, strict=True):
            if load:
                total = load + sum(self.free[host] for host in hosts)
                most = max(most, -(-total // len(hosts)))
        return most

    def _extend(self, last_start: int, end: int, left: int) -> None:
        """Tries everything after what is placed, most promising first."""
        if not left:
            if end < self.best:
                self.best, self.found = end, list(self.placed)
            return
        choices = []
        for number, group in enumerate(self.groups):
            if not group.left:
                continue
            ready = max(self.free[host] for host in group.targets)
            for at, sender in enumerate(group.senders):
                start = max(ready, self.free[sender])
                if start >= last_start:
                    urgency = -max(self.loads[member] for member in self.loads_of[number])
                    choices.append((start, urgency, number, at))
        for start, _, number, at in sorted(choices):
            if self.budget <= 0:
                return
            self.budget -= 1
            group = self.groups[number]
            sender, stop = group.senders[at], start + group.ticks[at]
            if stop >= self.best:
                continue
            hosts = (sender, *group.targets)
            before = [self.free[host] for host in hosts]
            for host in hosts:
                self.free[host] = stop
            self._spend(number, -1)
            self.placed.append((number, sender))
            if self._bound() < self.best:
                self._extend(start, max(end, stop), left - 1)
            self.placed.pop()
            self._spend(number, 1)
            for host, time in zip(hosts, before, strict=True):
                self.free[host] = time

    def _spend(self, number: int, sign: int) -> None:
        group = self.groups[number]
        group.left += sign
        for member in self.loads_of[number]:
            self.loads[member] += sign * min(group.ticks)
