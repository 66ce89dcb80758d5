"""What every compute task receives before it and sends and frees after it: the one canonical form of a task list.

Owns the dependencies between stages as tasks, and what a transfer costs. Knows no order of compute tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.tasks import ScheduledStep, Task

# kind, stage, micro-batch of a forward, backward or weight task; per group the order in which it runs them.
Step: TypeAlias = tuple[str, int, int]
Orders: TypeAlias = Sequence[Sequence[Step]]
# of, src, dst, whether it happens once per step, level.
_Transfer: TypeAlias = tuple[str, int, int, bool, int | None]


class Wiring:
    """The transfers around the compute tasks of a pipeline, for a number of micro-batches and the stages to split."""

    def __init__(self, costs: PipelineCosts, microbatches: int, split: Sequence[int]) -> None:
        self._last = microbatches - 1
        self._freed_by = ["weight" if s in split else "backward" for s in range(costs.stages)]
        self._peers_in: dict[tuple[str, int], list[int]] = {}
        self._peers_out: dict[tuple[str, int], list[int]] = {}
        # Once per step; the task is (kind, stage, level), with level None for the first or last micro-batch.
        self._once_in: dict[tuple[str, int, int | None], list[tuple[str, int, int | None]]] = {}
        self._once_out: dict[tuple[str, int, int | None], list[int]] = {}
        self._transfers: dict[_Transfer, tuple[float, tuple[str, ...]]] = {}
        for edge in sorted(costs.edges, key=lambda e: (e.src, e.dst)):
            if edge.forward_s is not None:
                links = edge.forward_links or self._own_link(costs, edge.src, edge.dst)
                self._connect("forward", edge.src, edge.dst, edge.forward_s, links)
            if edge.backward_s is not None:
                links = edge.backward_links or self._own_link(costs, edge.dst, edge.src)
                self._connect("backward", edge.dst, edge.src, edge.backward_s, links)
        for peers in (*self._peers_in.values(), *self._peers_out.values()):
            peers.sort()
        for exchange in sorted(costs.exchanges, key=lambda e: (e.level, e.src, e.dst, e.of)):
            src, dst, of, level = exchange.src, exchange.dst, exchange.of, exchange.level
            if of in ("prepare", "apply"):
                made: int | None = level
                late = of == "prepare" and level + 1 >= costs.prepare_levels[dst]
                needed: tuple[str, int, int | None] = ("forward", dst, None) if late else (of, dst, level + 1)
            else:
                # Where backward is whole it leaves the sums of weight gradients too.
                of = "backward" if of == "weight" and self._freed_by[src] == "backward" else of
                made, needed = None, ("apply", dst, 0)
            key = (of, src, dst, True, made)
            seconds = exchange.seconds
            if key in self._transfers:
                seconds += self._transfers[key][0]
            else:
                self._once_in.setdefault(needed, []).append((of, src, made))
                self._once_out.setdefault((of, src, made), []).append(dst)
            self._transfers[key] = (seconds, exchange.links or self._own_link(costs, src, dst))

    def _connect(self, of: str, src: int, dst: int, seconds: float, links: tuple[str, ...]) -> None:
        self._peers_out.setdefault((of, src), []).append(dst)
        self._peers_in.setdefault((of, dst), []).append(src)
        self._transfers[(of, src, dst, False, None)] = (seconds, links)

    @staticmethod
    def _own_link(costs: PipelineCosts, src: int, dst: int) -> tuple[str, ...]:
        return (f"{costs.groups[src]}>{costs.groups[dst]}",)

    def before(self, task: Task) -> list[Task]:
        """The recvs that stand directly before a compute task."""
        kind, stage, microbatch = task.kind, task.stage, task.microbatch
        recvs = []
        if microbatch is None or microbatch == 0:
            for of, src, level in self._once_in.get((kind, stage, task.level), ()):
                recvs.append(Task("recv", stage, None, src, of, level))
        if microbatch is not None:
            for src in self._peers_in.get((kind, stage), ()):
                recvs.append(Task("recv", stage, microbatch, src, kind))
        return recvs

    def after(self, task: Task) -> list[Task]:
        """The sends, and the free if it is the last use, that stand directly after a compute task."""
        kind, stage, microbatch = task.kind, task.stage, task.microbatch
        rest = []
        if microbatch is not None:
            for dst in self._peers_out.get((kind, stage), ()):
                rest.append(Task("send", stage, microbatch, dst, kind))
        if microbatch is None or microbatch == self._last:
            for dst in self._once_out.get((kind, stage, task.level), ()):
                rest.append(Task("send", stage, None, dst, kind, task.level))
        if kind == self._freed_by[stage]:
            rest.append(Task("free", stage, microbatch))
        return rest

    def around(self, compute: Iterable[Task]) -> list[Task]:
        """The task list of a group that computes in this order."""
        tasks: list[Task] = []
        for task in compute:
            tasks += self.before(task)
            tasks.append(task)
            tasks += self.after(task)
        return tasks

    def transfer(self, send: Task) -> tuple[float, tuple[str, ...]]:
        """Seconds of a send, and the links it occupies. KeyError for one that the pipeline does not have."""
        assert send.peer is not None and send.of is not None
        return self._transfers[(send.of, send.stage, send.peer, send.microbatch is None, send.level)]

    def bare_forward(self, stage: int) -> bool:
        """Whether forwards of a stage exchange nothing: nothing beside them in a list then tells their place."""
        return ("forward", stage) not in self._peers_in and ("forward", stage) not in self._peers_out


def once(costs: PipelineCosts, group: int, kind: str) -> list[Task]:
    """The prepare or apply tasks of a group, in order: by level, then stage."""
    levels = costs.prepare_levels if kind == "prepare" else costs.apply_levels
    stages = costs.stages_of(group)
    return [
        Task(kind, stage, level=level)
        for level in range(max((levels[stage] for stage in stages), default=0))
        for stage in stages
        if level < levels[stage]
    ]


def lower(
    name: str,
    costs: PipelineCosts,
    microbatches: int,
    orders: Orders,
    split: Sequence[int] = (),
    late_forwards: bool = False,
) -> ScheduledStep:
    """The schedule whose groups compute in these orders, with everything around it in canonical form.

    With `late_forwards`, forwards that exchange nothing move to directly before their backward: nobody waits for them.
    """
    wiring = Wiring(costs, microbatches, split)
    if late_forwards:
        bare = {stage for stage in range(costs.stages) if wiring.bare_forward(stage)}
        orders = [_late(order, bare) for order in orders] if bare else orders
    lists = []
    for group, order in enumerate(orders):
        compute = [Task(kind, stage, microbatch) for kind, stage, microbatch in order]
        lists.append(tuple(wiring.around([*once(costs, group, "prepare"), *compute, *once(costs, group, "apply")])))
    return ScheduledStep(name, costs.stages, microbatches, tuple(lists), warmup_of(costs.stages, orders), tuple(split))


def _late(order: Sequence[Step], bare: Collection[int]) -> list[Step]:
    late: list[Step] = []
    for kind, stage, microbatch in order:
        if stage in bare and kind == "backward":
            late.append(("forward", stage, microbatch))
        if stage not in bare or kind != "forward":
            late.append((kind, stage, microbatch))
    return late


def warmup_of(stages: int, orders: Orders) -> tuple[int, ...]:
    """Per stage, the forwards before its first backward."""
    forwards = [0] * stages
    started = [False] * stages
    for order in orders:
        for kind, stage, _ in order:
            if kind == "forward":
                forwards[stage] += not started[stage]
            else:
                started[stage] = True
    return tuple(forwards)
