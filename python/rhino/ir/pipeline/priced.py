"""What a step in fragments costs: its parts with their seconds, what stages exchange, and the bytes they hold.

Owns reading them off the module. Seconds come from `rhino.cost`, from a cluster's roofline, or from the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from jaxlib.mlir import ir

from rhino.dialect import sdy
from rhino.dialect.attributes import RhinoCost, RhinoMulticast
from rhino.dialect.context import parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.pipeline.outline import outline
from rhino.ir.pipeline.program import fragment_ops, local_bytes, transfer_ops
from rhino.machine import Cluster
from rhino.machine.host import task_start_seconds
from rhino.machine.roofline import launch_seconds, op_seconds, perfect_s
from rhino.pipeline.program import (
    Fragment,
    FragmentSeconds,
    GroupValue,
    PipelineProgram,
    PricedProgram,
    StageMemory,
    StageSend,
    Transfer,
    edges_of,
)
from rhino.pipeline.search.placement import Placement
from rhino.pipeline.search.spread import Spread


@dataclass(frozen=True, slots=True)
class Units:
    """Seconds for what nothing says: a stage's forward, its whole backward, and a transfer between two stages."""

    forward_s: float = 1.0
    backward_s: float = 2.0
    transfer_s: float = 0.0


def read_priced(
    module: ir.Module, program: PipelineProgram, cluster: Cluster | None, units: Units | None = None
) -> PricedProgram:
    """The parts of the pipeline in a module with what the module says that they cost."""
    units = units or Units()
    seconds = fragment_seconds(module, program, cluster, units)
    return priced_program(program, seconds, planned_seconds(module, program), cluster, units)


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
                graph, devices = import_graph(parse_text(text, module.context)), program.meshes[fragment.group].devices
                known[key] = perfect_s(op_seconds(graph, cluster), launch_seconds(graph, cluster), len(devices))
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


def priced_program(
    program: PipelineProgram,
    seconds: Sequence[float],
    planned: Mapping[int, float],
    cluster: Cluster | None,
    units: Units,
) -> PricedProgram:
    """The parts of a program.

    Args:
      seconds: of each fragment.
      planned: of transfers that are planned.
      cluster: what the others go over; without one all from a stage to another take `units.transfer_s`.
    """
    sends = [*_looped(program), *_once(program)]
    return PricedProgram(
        tuple(program.group_of(s) for s in range(program.stages)),
        tuple(FragmentSeconds(f.kind, f.stage, f.level, seconds[f.index]) for f in program.fragments),
        tuple(_send(program, key, transfers, planned, cluster, units) for key, transfers in sends),
        program.memory or tuple(_memory(program, s) for s in range(program.stages)),
        0.0 if cluster is None else task_start_seconds(cluster, len(program.meshes)),
    )


# of, level, from stage, to stage, whether it is in every micro-batch
_Key = tuple[str, int, int, int, bool]


def _send(
    program: PipelineProgram,
    key: _Key,
    transfers: Sequence[Transfer],
    planned: Mapping[int, float],
    cluster: Cluster | None,
    units: Units,
) -> StageSend:
    a, b = program.group_of(key[2]), program.group_of(key[3])
    taken = sum(planned.get(t.index, 0.0) for t in transfers)
    rest = [program.values[t.target] for t in transfers if t.index not in planned]
    if cluster is None:
        if a != b and len(rest) == len(transfers):
            taken = units.transfer_s
        return StageSend(*key, taken)
    widths = tuple(len(mesh.devices) for mesh in program.meshes)
    placement = Placement(cluster, widths, tuple(min(mesh.devices) for mesh in program.meshes))
    taken += sum(placement.transfer_s(a, b, v.nbytes, spread_of(program, v)) for v in rest)
    return StageSend(*key, taken, () if a == b else placement.links(a, b))


def _looped(program: PipelineProgram) -> Iterator[tuple[_Key, list[Transfer]]]:
    """What stages read in the loop of what others make there; none of it travels between those of one group."""
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
    for (src, dst), moved in sorted(sent.items()):
        yield ("forward" if src < dst else "backward", 0, src, dst, True), list(moved.values())


def _once(program: PipelineProgram) -> Iterator[tuple[_Key, list[Transfer]]]:
    """What is sent before or after the loop."""
    moved: dict[_Key, list[Transfer]] = {}
    for op in (*program.before, *program.after):
        if isinstance(op, Transfer):
            moved.setdefault((op.of, op.level, op.from_stage, op.to_stage, False), []).append(op)
    yield from moved.items()


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


def _memory(program: PipelineProgram, stage: int) -> StageMemory:
    """Where nothing says more: the values between fragments. Those of a group count for the first of its stages.

    Not the sweep of `rhino.pipeline.search.memory`, which needs the graph that was cut: what runs inside a fragment is
    not counted.
    """
    group = program.group_of(stage)
    saved = _saved_bytes(program, stage)
    if stage != group:
        return StageMemory(0, 0, saved, saved, 0)

    def held(values: Sequence[int]) -> int:
        return sum(local_bytes(program, program.values[v]) for v in values if program.values[v].group == group)

    inside = {v for op in program.body if isinstance(op, Fragment) for v in op.operands}
    prepared = [v for op in program.before for v in (op.results if isinstance(op, Fragment) else (op.target,))]
    kept = [carry.argument for carry in program.carries] + [value for value in prepared if value in inside]
    return StageMemory(held([argument.value for argument in program.arguments]), held(kept), saved, saved, 0)


def _saved_bytes(program: PipelineProgram, stage: int) -> int:
    """Bytes per device that a stage's backward reads of what was there when its forward ended."""
    readers = [f for f in program.fragments if f.stage == stage and f.kind in ("backward", "weight")]
    read = dict.fromkeys(value for fragment in readers for value in fragment.operands)
    early = {v for f in program.fragments if f.kind == "forward" and f.stage == stage for v in f.results}
    early |= {t.target for t in program.body if isinstance(t, Transfer) and t.of == "forward"}
    return sum(local_bytes(program, program.values[value]) for value in read if value in early)
