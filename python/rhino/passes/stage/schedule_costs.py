"""What a step in fragments costs, as the scheduler wants it: seconds of stages, what they exchange, bytes they hold.

Owns reading them off the fragments. Seconds come from `rhino.cost`, from a cluster's roofline, or from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.attributes import RhinoCost, RhinoMulticast
from rhino.dialect.context import parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.pipeline import fragment_ops, transfer_ops
from rhino.machine import Cluster
from rhino.machine.roofline import op_seconds
from rhino.passes.stage.outline import outline
from rhino.pipeline.program import Fragment, GroupValue, PipelineProgram, Transfer, edges_of
from rhino.pipeline.schedule import Edge, Exchange, PipelineCosts
from rhino.pipeline.search.placement import Placement
from rhino.pipeline.search.spread import Spread


@dataclass(frozen=True, slots=True)
class Units:
    """Seconds for what nothing says: a stage's forward, its whole backward, and a transfer between two stages."""

    forward_s: float = 1.0
    backward_s: float = 2.0
    transfer_s: float = 0.0


def fragment_seconds(
    module: ir.Module, program: PipelineProgram, cluster: Cluster | None, units: Units
) -> tuple[float, ...]:
    """Seconds of each fragment: of its `rhino.cost`, else the roofline's on its share of the cluster, else units."""
    ops = fragment_ops(module)
    given = [RhinoCost.of(op) for op in ops]
    modules = outline(module) if cluster is not None and None in given else []
    known: dict[str, float] = {}
    seconds = []
    for fragment, cost in zip(program.fragments, given, strict=True):
        if cost is not None:
            seconds.append(cost["time_s"] + cost.get("comm_s", 0.0))
        elif cluster is not None:
            text, key = modules[fragment.index].text, modules[fragment.index].key
            if key not in known:
                undivided = op_seconds(import_graph(parse_text(text, module.context)), cluster)
                known[key] = sum(undivided) / len(program.meshes[fragment.group].devices)
            seconds.append(known[key])
        else:
            split = program.find("weight", fragment.stage) is not None
            backward = units.backward_s / (2 if split else 1)
            by_kind = {"forward": units.forward_s, "backward": backward, "weight": backward}
            seconds.append(by_kind.get(fragment.kind, 0.0))
    return tuple(seconds)


def planned_seconds(module: ir.Module, program: PipelineProgram) -> dict[int, float]:
    """By transfer, what its edge is planned to take between hosts (`rhino.multicast`): told by the first of the edge,
    0 for the others. Nothing of edges within hosts, whose plans do not say."""
    ops, found = transfer_ops(module), {}
    for edge in edges_of(program):
        data = RhinoMulticast.of(ops[edge.transfers[0].index])
        if data is not None and data.get("makespan_s", 0.0) > 0:
            found.update(dict.fromkeys((t.index for t in edge.transfers), 0.0))
            found[edge.transfers[0].index] = data["makespan_s"]
    return found


def pipeline_costs(
    program: PipelineProgram,
    seconds: Sequence[float],
    planned: Mapping[int, float],
    cluster: Cluster | None,
    units: Units,
    limit_bytes: int,
) -> PipelineCosts:
    """The pipeline that a program is.

    Args:
      seconds: of each fragment.
      planned: of transfers that are planned.
      cluster: what the others go over; without one all from a stage to another take `units.transfer_s`.
      limit_bytes: per device; 0 for no limit.
    """
    stages, groups = range(program.stages), len(program.meshes)
    placement = None
    if cluster is not None:
        widths = tuple(len(mesh.devices) for mesh in program.meshes)
        placement = Placement(cluster, widths, tuple(min(mesh.devices) for mesh in program.meshes))

    def total(*kinds: str) -> list[float]:
        found = [0.0] * program.stages
        for fragment in program.fragments:
            if fragment.kind in kinds:
                found[fragment.stage] += seconds[fragment.index]
        return found

    def transfer_s(src: int, dst: int, transfers: Sequence[Transfer]) -> float:
        a, b = program.group_of(src), program.group_of(dst)
        told = [t for t in transfers if t.index in planned]
        if placement is None and not told:
            return 0.0 if a == b else units.transfer_s
        known = sum(planned[t.index] for t in told)
        if placement is None:
            return known
        values = [program.values[t.target] for t in transfers if t.index not in planned]
        return known + sum(placement.transfer_s(a, b, v.nbytes, spread_of(program, v)) for v in values)

    def links(src: int, dst: int) -> tuple[str, ...]:
        a, b = program.group_of(src), program.group_of(dst)
        return () if placement is None or a == b else placement.links(a, b)

    weight = total("weight")
    split = {f.stage for f in program.fragments if f.kind == "weight"}
    least = min((s for s in seconds if s > 0), default=1.0) * 1e-6  # a stage is split however little is left for later
    weight = [max(weight[s], least) if s in split else 0.0 for s in stages]
    backward = [b + w for b, w in zip(total("backward"), weight, strict=True)]
    return PipelineCosts(
        forward_s=tuple(total("forward")),
        backward_s=tuple(backward),
        weight_s=tuple(weight),
        prepare_s=tuple(total("prepare")),
        apply_s=tuple(total("update")),
        edges=tuple(_edges(program, transfer_s, links)),
        groups=tuple(program.group_of(s) for s in stages),
        activation_bytes=tuple(_saved_bytes(program, s) for s in stages),
        static_bytes=tuple(_static_bytes(program, group) for group in range(groups)),
        limit_bytes=(limit_bytes,) * groups if limit_bytes else (),
        prepare_levels=tuple(_levels(program, "prepare", s) for s in stages),
        apply_levels=tuple(_levels(program, "apply", s) for s in stages),
        exchanges=tuple(_exchanges(program, transfer_s, links)),
    )


_Seconds = Callable[[int, int, Sequence[Transfer]], float]
_Links = Callable[[int, int], tuple[str, ...]]


def _edges(program: PipelineProgram, transfer_s: _Seconds, links: _Links) -> list[Edge]:
    """Pairs of stages one of which reads in the loop what the other makes there; on one group that takes no time."""
    made = {value: op for op in program.body if isinstance(op, Fragment) for value in op.results}
    brought = {op.target: op for op in program.body if isinstance(op, Transfer)}
    sent: dict[tuple[int, int], dict[int, Transfer]] = {}
    for op in program.body:
        for value in op.operands if isinstance(op, Fragment) else ():
            transfer = brought.get(value)
            origin = value if transfer is None else transfer.source
            if origin in made and isinstance(op, Fragment) and made[origin].stage != op.stage:
                moved = sent.setdefault((made[origin].stage, op.stage), {})
                if transfer is not None:
                    moved[origin] = transfer
    edges = []
    for src, dst in sorted({(min(pair), max(pair)) for pair in sent}):
        there, back = sent.get((src, dst)), sent.get((dst, src))
        edges.append(
            Edge(
                src,
                dst,
                None if there is None else transfer_s(src, dst, list(there.values())),
                None if back is None else transfer_s(dst, src, list(back.values())),
                links(src, dst),
                links(dst, src),
            )
        )
    return edges


def _exchanges(program: PipelineProgram, transfer_s: _Seconds, links: _Links) -> list[Exchange]:
    moved: dict[tuple[str, int, int, int], list[Transfer]] = {}
    for op in (*program.before, *program.after):
        if isinstance(op, Transfer):
            moved.setdefault((op.of, op.from_stage, op.to_stage, op.level), []).append(op)
    return [
        Exchange(of, src, dst, level, transfer_s(src, dst, transfers), links(src, dst))
        for (of, src, dst, level), transfers in moved.items()
    ]


def spread_of(program: PipelineProgram, value: GroupValue) -> Spread:
    """How a value lies on its group. An axis of which only a part splits it counts as several."""
    mesh: list[int] = []
    split: list[bool] = []
    for axis, size in program.meshes[value.group].axes:
        texts = [text for texts in value.sharding for text in texts if text.split(":")[0] == axis]
        parts = [sdy.sub_axis(text, {axis: size}) for text in texts]
        # Between two of these numbers of consecutive devices an axis is split, or not.
        ends = sorted({1, size, *(end for count, stride in parts for end in (stride, count * stride))})
        for low, high in reversed(list(pairwise(ends))):
            mesh.append(high // low)
            split.append(any(stride <= low and high <= count * stride for count, stride in parts))
    return Spread(tuple(mesh), tuple(split))


def _levels(program: PipelineProgram, task: str, stage: int) -> int:
    """How many levels of prepare or apply a stage has: it computes or sends at the last."""
    levels = [f.level for f in program.fragments if f.task == task and f.stage == stage]
    levels += [t.level for t in program.transfers if t.of == task and t.from_stage == stage]
    return max(levels, default=-1) + 1


def _saved_bytes(program: PipelineProgram, stage: int) -> int:
    """Bytes per device that a stage's backward reads of what was there when its forward ended."""
    readers = [f for f in program.fragments if f.stage == stage and f.kind in ("backward", "weight")]
    read = dict.fromkeys(value for fragment in readers for value in fragment.operands)
    early = {v for f in program.fragments if f.kind == "forward" and f.stage == stage for v in f.results}
    early |= {t.target for t in program.body if isinstance(t, Transfer) and t.of == "forward"}
    return sum(_local_bytes(program, program.values[value]) for value in read if value in early)


def _static_bytes(program: PipelineProgram, group: int) -> int:
    """Bytes per device of what is there all the while: arguments, what is prepared of them, and accumulators."""
    kept = [argument.value for argument in program.arguments] + [carry.argument for carry in program.carries]
    inside = {v for op in program.body if isinstance(op, Fragment) for v in op.operands}
    prepared = [v for op in program.before for v in (op.results if isinstance(op, Fragment) else (op.target,))]
    kept += [value for value in prepared if value in inside]
    return sum(_local_bytes(program, program.values[v]) for v in kept if program.values[v].group == group)


def _local_bytes(program: PipelineProgram, value: GroupValue) -> int:
    sizes: Mapping[str, int] = dict(program.meshes[value.group].axes)
    return value.nbytes // prod(sdy.axis_size(axis, sizes) for axes in value.sharding for axis in axes)
