"""The pipeline as schedules see it: what every stage costs, which stages exchange values, and the memory of groups.

Owns the numbers and their validity, and the graph of stages. Knows neither tensors nor how a schedule is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from rhino.errors import RhinoError
from rhino.pipeline.schedule.tasks import IN_LOOP


@dataclass(frozen=True, slots=True)
class Edge:
    """What two stages exchange in every micro-batch.

    Attributes:
      src, dst: the stages, src < dst.
      forward_s: seconds of the transfer src -> dst; None when nothing goes that way.
      backward_s: seconds of the transfer dst -> src; None when nothing goes that way (what is frozen has no gradient).
      forward_links, backward_links: what each transfer occupies, such as the NIC it leaves by and the one it arrives
        at. Transfers between different groups that name the same link share it; those from one group to another queue.
        () is a link that only these two use.
    """

    src: int
    dst: int
    forward_s: float | None = 0.0
    backward_s: float | None = 0.0
    forward_links: tuple[str, ...] = ()
    backward_links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A value that one stage sends to another once per step, before or after the micro-batches.

    Attributes:
      of: "prepare": sent after prepare `level` of src (also an argument that src owns). Needed by prepare `level` + 1
        of dst if dst has it, else by its first forward. "apply": the same with apply; dst must have the level.
        "forward", "backward" or "weight": what src's tasks of that kind leave after the last micro-batch, such as the
        sum of partial gradients; needed by apply 0 of dst.
      src, dst: the stages; any order.
      level: of prepare and apply.
      seconds: of the transfer.
      links: what it occupies, as in Edge.
    """

    of: str
    src: int
    dst: int
    level: int = 0
    seconds: float = 0.0
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PipelineCosts:
    """Costs of a pipeline of stages, which form any DAG; per stage unless stated otherwise.

    Attributes:
      forward_s, backward_s: seconds of one micro-batch; backward is whole.
      weight_s: the part of backward_s that can be delayed (weight gradients); 0 where backward cannot be split.
      prepare_s, apply_s: seconds once per step before and after the micro-batches. prepare_s is spent at level 0,
        apply_s at the last level.
      edges: what stages exchange per micro-batch.
      groups: the device group each stage runs on; 0, 1, ... all occur.
      activation_bytes: saved activations of one micro-batch, per device.
      static_bytes: per group, what is there while micro-batches run, besides what they saved.
      once_bytes: per group, the most that it needs before or after the micro-batches.
      limit_bytes: per group, what there is room for; () for no limit.
      prepare_levels, apply_levels: levels each stage has of either.
      exchanges: what is sent once per step.
      task_s: what a task in the loop takes at least: its group's host starts one after another.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...] = ()
    prepare_s: tuple[float, ...] = ()
    apply_s: tuple[float, ...] = ()
    edges: tuple[Edge, ...] = ()
    groups: tuple[int, ...] = ()
    activation_bytes: tuple[int, ...] = ()
    static_bytes: tuple[int, ...] = ()
    once_bytes: tuple[int, ...] = ()
    limit_bytes: tuple[int, ...] = ()
    prepare_levels: tuple[int, ...] = ()
    apply_levels: tuple[int, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    task_s: float = 0.0

    def __post_init__(self) -> None:
        n = len(self.forward_s)
        if n < 1:
            raise RhinoError("a pipeline needs at least one stage, got none", "give the forward seconds of each stage")
        fill = {
            "weight_s": 0.0, "prepare_s": 0.0, "apply_s": 0.0,
            "activation_bytes": 0, "prepare_levels": 1, "apply_levels": 1,
        }  # fmt: skip
        for name, value in fill.items():
            if not getattr(self, name):
                object.__setattr__(self, name, (value,) * n)
        if not self.groups:
            object.__setattr__(self, "groups", tuple(range(n)))
        for name in ("static_bytes", "once_bytes"):
            if not getattr(self, name):
                object.__setattr__(self, name, (0,) * self.group_count)
        _validate(self)

    @classmethod
    def uniform(
        cls,
        stages: int,
        forward_s: float,
        backward_s: float,
        transfer_s: float = 0.0,
        *,
        weight_s: float = 0.0,
        groups: int | None = None,
    ) -> PipelineCosts:
        """A chain of equal stages: stage s exchanges with s + 1 and runs on group s mod `groups`, or on its own."""
        if stages < 1:
            raise RhinoError(f"a pipeline needs at least one stage, got {stages}", "give 1 or more")
        return cls.chain((forward_s,) * stages, (backward_s,) * stages, transfer_s, (weight_s,) * stages, groups)

    @classmethod
    def chain(
        cls,
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        transfer_s: float = 0.0,
        weight_s: Sequence[float] = (),
        groups: int | None = None,
    ) -> PipelineCosts:
        """A chain of stages with costs of their own and equal transfers, dealt to `groups` groups in turn."""
        n = len(forward_s)
        count = n if groups is None else groups
        if not 1 <= count <= max(n, 1):
            raise RhinoError(f"{n} stages cannot run on {count} groups", f"give 1 to {n} groups")
        return cls(
            tuple(forward_s),
            tuple(backward_s),
            tuple(weight_s),
            edges=tuple(Edge(s, s + 1, transfer_s, transfer_s) for s in range(n - 1)),
            groups=tuple(s % count for s in range(n)),
        )

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.forward_s)

    @property
    def group_count(self) -> int:
        """Number of device groups."""
        return max(self.groups) + 1

    def stages_of(self, group: int) -> tuple[int, ...]:
        """The stages that run on a group, in order."""
        return tuple(s for s, g in enumerate(self.groups) if g == group)

    def splittable(self) -> tuple[int, ...]:
        """The stages whose backward may be split: it has a weight part, and gradients arrive or leave."""
        linked = {s for edge in self.edges if edge.backward_s is not None for s in (edge.src, edge.dst)}
        return tuple(s for s in range(self.stages) if self.weight_s[s] > 0 and s in linked)

    def depths(self) -> tuple[int, ...]:
        """Stages on the longest path from each stage to a last one: n - i in a chain. Falls along every edge."""
        depth = [1] * self.stages
        for edge in sorted(self.edges, key=lambda e: e.src, reverse=True):
            depth[edge.src] = max(depth[edge.src], depth[edge.dst] + 1)
        return tuple(depth)

    def room(self, stage: int) -> int | None:
        """Micro-batches whose activations fit on the stage's group when it is alone there; None for no limit."""
        group = self.groups[stage]
        if not self.limit_bytes or not self.activation_bytes[stage]:
            return None
        return max(0, self.limit_bytes[group] - self.static_bytes[group]) // self.activation_bytes[stage]


def _validate(costs: PipelineCosts) -> None:
    n = costs.stages
    for name in ("forward_s", "backward_s", "weight_s", "prepare_s", "apply_s", "groups", "activation_bytes",
                 "prepare_levels", "apply_levels"):  # fmt: skip
        values = getattr(costs, name)
        if len(values) != n:
            raise RhinoError(f"{name} has {len(values)} values, but there are {n} stages", "give one per stage")
        for stage, value in enumerate(values):
            if not (isfinite(value) and value >= 0):
                raise RhinoError(f"{name} of stage {stage} is {value}", "give a number that is not negative")
    for stage in range(n):
        if costs.weight_s[stage] > costs.backward_s[stage]:
            whole = f"its backward takes {costs.backward_s[stage]:g}"
            raise RhinoError(f"the weight part of stage {stage} takes {costs.weight_s[stage]:g}, but {whole}",
                             "backward is whole: it includes the weight part")  # fmt: skip
    used = set(costs.groups)
    if len(used) != costs.group_count:
        missing = next(g for g in range(costs.group_count) if g not in used)
        raise RhinoError(f"no stage runs on group {missing} of {costs.group_count}", "number the groups 0, 1, ...")
    for name in ("static_bytes", "once_bytes", "limit_bytes"):
        values = getattr(costs, name)
        if values and len(values) != costs.group_count:
            raise RhinoError(f"{name} has {len(values)} values, but there are {costs.group_count} groups",
                             "give one per group")  # fmt: skip
    _validate_edges(costs)
    keys = [(e.of, e.src, e.dst, e.level) for e in costs.exchanges]
    for exchange, key in zip(costs.exchanges, keys, strict=True):
        _validate_exchange(costs, exchange)
        if keys.count(key) > 1:
            raise RhinoError(
                f"exchange of {exchange.of} {exchange.src} -> {exchange.dst} is given twice", "add them up"
            )


def _validate_edges(costs: PipelineCosts) -> None:
    seen: set[tuple[int, int]] = set()
    for edge in costs.edges:
        where = f"edge {edge.src} -> {edge.dst}"
        if not 0 <= edge.src < edge.dst < costs.stages:
            raise RhinoError(f"{where} must go from a stage to a later one of {costs.stages}", "number the stages so")
        if (edge.src, edge.dst) in seen:
            raise RhinoError(f"{where} is given twice", "add up what the two stages exchange")
        seen.add((edge.src, edge.dst))
        for seconds in (edge.forward_s, edge.backward_s):
            if seconds is not None and not (isfinite(seconds) and seconds >= 0):
                raise RhinoError(f"{where} takes {seconds} seconds", "give a number that is not negative, or None")


def _validate_exchange(costs: PipelineCosts, exchange: Exchange) -> None:
    src, dst, of, level = exchange.src, exchange.dst, exchange.of, exchange.level
    where = f"exchange of {of} {src} -> {dst}"
    if of not in ("prepare", "apply", *IN_LOOP):
        raise RhinoError(f"{where} is of an unknown kind", f"known are prepare, apply, {', '.join(IN_LOOP)}")
    if not (0 <= src < costs.stages and 0 <= dst < costs.stages) or src == dst:
        raise RhinoError(f"{where} must be between two of {costs.stages} stages", "give two different stages")
    if exchange.seconds < 0 or not isfinite(exchange.seconds):
        raise RhinoError(f"{where} takes {exchange.seconds} seconds", "give a number that is not negative")
    if of in IN_LOOP:
        if level or not costs.apply_levels[dst]:
            raise RhinoError(f"{where} needs level 0, and an apply on stage {dst}", "give stage dst an apply level")
        return
    levels = costs.prepare_levels if of == "prepare" else costs.apply_levels
    if not 0 <= level < levels[src]:
        raise RhinoError(f"{where} leaves level {level}, but stage {src} has {levels[src]}", "give it more levels")
    if of == "apply" and level + 1 >= levels[dst]:
        raise RhinoError(f"{where} is for level {level + 1}, but stage {dst} has {levels[dst]}", "give it more levels")
