"""What one pipeline costs: stages of a laid-out program as the scheduler and the memory check see them.

Owns the sums over ops by stage and phase (docs/design/pipelines.md, "Costs"), the transfers between stages, and the sum
of replicas' gradients. Decides neither stages nor schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from rhino.deadline import NEVER, Deadline
from rhino.machine.host import task_start_seconds
from rhino.pipeline.cut.plan import StageMachine, StagePlan, plan_step
from rhino.pipeline.cut.problem import StageOptions
from rhino.pipeline.program import FragmentSeconds, PricedProgram, StageMemory, StageSend, delayed_ops, peak_bytes
from rhino.pipeline.schedule.costs import PipelineCosts
from rhino.pipeline.schedule.tasks import IN_LOOP
from rhino.pipeline.search.between import BetweenReplicas, accumulated, between_replicas
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.distributed import NOTHING, distributed
from rhino.pipeline.search.fragment_lives import Staging
from rhino.pipeline.search.memory import stage_memory
from rhino.pipeline.search.placement import Matrix, Placement
from rhino.pipeline.search.sends import once_levels
from rhino.pipeline.search.sharded import Layouts, Prepared, Sharded
from rhino.pipeline.search.spread import Spread
from rhino.program.data import Graph
from rhino.sharding.overlap import hidden_seconds

# What the integer program of one cut branches at most, in nodes times columns: chains are cut without one.
_CUT_WORK, _CUT_GAP = 400_000, 5e-3


def stage_step(
    prepared: Prepared,
    layouts: Layouts,
    shape: Shape,
    placement: Placement,
    memory_limits: tuple[int, ...] = (),
    exact: bool = False,
    microbatches: int = 0,
    deadline: Deadline = NEVER,
) -> StagePlan:
    """The stages of a laid-out program, for 1F1B's micro-batches in flight.

    It is cut by what the widest stages take; narrower ones are as much slower as the whole program is on them, and
    hold more bytes of each value.

    Args:
      memory_limits: by stage, for what `StagePlan` counts: arguments, accumulators and saved activations.
      exact: whether to tell links inside hosts from those between them, which takes an integer program.
      microbatches: those that stages are cut for; by default the shape's.
      deadline: when the integer program ends.

    Raises:
      RhinoError: it has fewer parts than stages, or nothing is within the limits.
    """
    totals = {width: _total_seconds(layouts[width]) for width in shape.distinct}
    total = totals[shape.width]
    # A step that only hands on what it is given takes no time anywhere.
    speeds = tuple(sum(total) / sum(totals[width]) if any(totals[width]) else 1.0 for width in shape.stage_widths)
    memory_limits = tuple(limit * w // shape.width for limit, w in zip(memory_limits, shape.stage_widths, strict=False))
    n, m = shape.stages, microbatches or shape.microbatches
    # Of a value split over a group each device counts its part, and all parts travel.
    start_s, byte_s = placement.rates(float(shape.width * shape.replicas), n)
    if not exact:
        # With one kind of link all cuts of a chain are tried in no time.
        start_s, byte_s = _alike(start_s), _alike(byte_s)
    machine = StageMachine(
        n, m, speeds=speeds, in_flight=replace(shape, parts=m * shape.replicas).in_flight, memory_limits=memory_limits,
        byte_s=byte_s, latency_s=start_s,
    )  # fmt: skip
    options = StageOptions(time_limit_s=deadline.at_most(inf), work=_CUT_WORK, gap=_CUT_GAP)
    widest = layouts[shape.width]
    return plan_step(
        prepared.ready, total, machine, options, widest.local, _sent(prepared.graph, widest, shape, placement)
    )


def _total_seconds(sharded: Sharded) -> list[float]:
    seconds = sharded.seconds
    return [a + b + c for a, b, c in zip(seconds.compute, seconds.comm, seconds.hideable, strict=True)]


def _sent(graph: Graph, sharded: Sharded, shape: Shape, placement: Placement) -> list[int]:
    """By value, bytes of each device that take as long as sending it on: copies within a host are made there."""
    inside = placement.same_host(0, shape.groups - 1)
    part = 1 if inside else min(shape.width * shape.replicas, placement.cluster.devices_per_host)
    weights: dict[Spread, float] = {}
    for spread in sharded.spread:
        if spread not in weights:
            weights[spread] = _beside(spread, shape.replicas, shape.replicas).weight(part) / shape.width
    return [round(v.nbytes * weights[s]) for v, s in zip(graph.values, sharded.spread, strict=True)]


def _alike(matrix: Matrix) -> Matrix:
    """The mean between neighbours, between every two stages."""
    n = len(matrix)
    mean = sum(matrix[s][s + 1] for s in range(n - 1)) / max(1, n - 1)
    return tuple(tuple(mean if a != b else 0.0 for b in range(n)) for a in range(n))


@dataclass(frozen=True, slots=True)
class Loads:
    """Seconds by stage of one device: of one micro-batch for `forward`, `backward` and `weight`, else of a step.

    `backward` is without what is in `weight`. `compute` and `comm` are those of a step, summed over phases.
    """

    forward: list[float]
    backward: list[float]
    weight: list[float]
    prepare: list[float]
    update: list[float]
    compute: list[float]
    comm: list[float]


def loads(
    prepared: Prepared,
    by_stage: Sequence[Sharded],
    plan: StagePlan,
    delayed: Collection[int],
    replicas: int = 1,
    parts: Collection[int] = (),
) -> Loads:
    """Seconds of the stages, from those of their ops.

    Args:
      delayed: the backward ops in weight fragments.
      parts: the ops of which each of the replicas does a part.
    """
    graph = prepared.graph
    n = plan.stages
    phases = ("prepare", "forward", "backward", "weight", "update")
    compute = {phase: [0.0] * n for phase in phases}
    comm = {phase: [0.0] * n for phase in phases}
    hideable = {phase: [0.0] * n for phase in phases}
    for op in graph.ops:
        s = plan.stage_of_op[op.index]
        phase = plan.phase_of_op[op.index]
        if s < 0 or not phase:
            continue
        if phase == "backward" and op.index in delayed:
            phase = "weight"
        seconds = by_stage[s].seconds
        late = seconds.late[op.index]
        compute[phase][s] += seconds.compute[op.index] / (replicas if op.index in parts else 1)
        comm[phase][s] += seconds.comm[op.index]
        hideable[phase][s] += max(0.0, seconds.hideable[op.index] - late)
        comm["update"][s] += late
    total_compute, total_comm = [0.0] * n, [0.0] * n
    taken: dict[str, list[float]] = {}
    for phase in phases:
        taken[phase] = []
        for s in range(n):
            hidden = hidden_seconds(compute[phase][s], hideable[phase][s], by_stage[s].solution.costs.hiding.windows[0])
            exposed = comm[phase][s] + hideable[phase][s] - hidden
            total_compute[s] += compute[phase][s]
            total_comm[s] += exposed
            trips = graph.microbatches if phase in IN_LOOP else 1
            taken[phase].append((compute[phase][s] + exposed) / trips)
    return Loads(
        taken["forward"], taken["backward"], taken["weight"], taken["prepare"], taken["update"],
        total_compute, total_comm,
    )  # fmt: skip


def weight_ops(graph: Graph, plan: StagePlan) -> frozenset[int]:
    """The ops that `rhino-form-fragments{split-backward}` delays, those in their regions included."""
    loop = graph.microbatch_loop
    body = graph.ops[loop + 1 : graph.ops[loop].region_end]
    reads = {}
    for op in body:
        if op.parent == loop and plan.phase_of_op[op.index] == "backward":
            inside = graph.ops[op.index + 1 : op.region_end]
            reads[op.index] = {graph.values[v].producer for o in (op, *inside) for v in o.operands}
    stage_of = {i: plan.stage_of_op[i] for i in reads}
    sent = {graph.values[t.value].producer for t in plan.transfers if t.phase == "backward"}
    found = set(delayed_ops(stage_of, reads, sent))
    # Ops of a region are where their parent is.
    for op in body:
        if op.parent in found:
            found.add(op.index)
    return frozenset(found)


def _beside(spread: Spread, replicas: int, values: int) -> Spread:
    """How replicas of a stage need a value: one each, side by side, or all the same one."""
    return Spread((replicas, *spread.mesh), (values > 1, *spread.split))


@dataclass(frozen=True)
class Pipeline:
    """A pipeline as the scheduler sees it, and the memory of its stages.

    `costs` are those of `priced`. `replicas` is what the replicas of each stage exchange once a step.
    """

    shape: Shape
    priced: PricedProgram
    costs: PipelineCosts
    memory: list[StageMemory]
    loads: Loads
    replicas: BetweenReplicas

    def peak_bytes(self, in_flight: Sequence[int]) -> list[int]:
        """By group of devices, the peak of one of them, with so many micro-batches of each stage in flight."""
        groups = map(self.costs.stages_of, range(self.costs.group_count))
        return [peak_bytes([self.memory[s] for s in on], [in_flight[s] for s in on]) for on in groups]


def pipeline(
    prepared: Prepared,
    layouts: Layouts,
    plan: StagePlan,
    shape: Shape,
    placement: Placement,
    limit_bytes: int,
    distribute: bool = True,
) -> Pipeline:
    """The costs of a pipeline, with a distributed optimizer where that is as fast, or where it does not fit without.

    Args:
      prepared: of the program cut into `shape.parts` parts.
      limit_bytes: per device, for activations and the rest.
      distribute: whether replicas may share the update out.
    """
    price = partial(_priced, prepared, layouts, plan, shape, placement, limit_bytes)
    between = partial(between_replicas, prepared, layouts, plan, shape, placement)
    shared = NOTHING
    if distribute:
        solutions = [layouts[width].solution for width in shape.stage_widths]
        shared = distributed(prepared.ready.step, prepared.updates, plan, solutions, shape.replicas)
    whole = between(NOTHING)
    if not shared.dims:
        return price(whole)
    apart = between(shared)
    if shared.given or _gain_s(apart, whole, layouts, plan, shape) >= 0:
        return price(apart)
    found = price(whole)
    return found if max(found.peak_bytes(shape.in_flight)) <= limit_bytes else price(apart)


def _gain_s(apart: BetweenReplicas, whole: BetweenReplicas, layouts: Layouts, plan: StagePlan, shape: Shape) -> float:
    """Seconds, of all stages, that updating in parts is faster than updating everything on every replica."""
    updating_s = 0.0
    for o in apart.distributed.dims:
        updating_s += layouts[shape.stage_widths[plan.stage_of_op[o]]].seconds.compute[o]
    return sum(whole.seconds) - sum(apart.seconds) + updating_s * (1 - 1 / shape.replicas)


def _priced(
    prepared: Prepared,
    layouts: Layouts,
    plan: StagePlan,
    shape: Shape,
    placement: Placement,
    limit_bytes: int,
    between: BetweenReplicas,
) -> Pipeline:
    """As `pipeline`, with what replicas do once a step."""
    graph = prepared.graph
    by_stage = [layouts[width] for width in shape.stage_widths]
    delayed = weight_ops(graph, plan)
    load = loads(prepared, by_stage, plan, delayed, shape.replicas, between.distributed.dims)
    held = zip(prepared.ready.step.graph.arguments, plan.stage_of_argument, strict=True)
    staging = Staging(
        plan.stages,
        plan.stage_of_op,
        [p == "backward" for p in plan.phase_of_op],
        graph.microbatch_loop,
        [(argument.value, s) for argument, s in held],
        [(start, s) for start, _, stages in accumulated(prepared, plan) for s in stages[1:]],
        frozenset(v for parts in plan.sums.values() for v in parts),
    )
    held_by = {
        width: stage_memory(graph, staging, prepared.life, *between.held(prepared, layouts[width], shape.replicas))
        for width in shape.distinct
    }
    memory = [held_by[width][s] for s, width in enumerate(shape.stage_widths)]
    # What a replica adds up stands beside the sum of all.
    sends = []
    begun: set[tuple[str, int, int]] = set()
    split = {plan.stage_of_op[o] for o in delayed}
    summed = [shape.replicas > 1 and bool(found) for found in between.collectives]
    levels = once_levels(prepared.ready.step, plan, delayed, summed)
    groups = tuple(s % placement.groups for s in range(plan.stages))
    for t in plan.transfers:
        src, dst = groups[t.src], groups[t.dst]
        looped = t.phase in ("forward", "backward")
        replicas = shape.replicas if looped else 1
        target = by_stage[t.dst].spread[t.value]
        seconds = placement.transfer_s(
            src, dst, graph.values[t.value].nbytes * replicas, _beside(target, shape.replicas, replicas)
        )
        # What one fragment sends to another host goes together, and waits for a hop once.
        if looped and seconds and not placement.same_host(src, dst):
            seconds -= placement.start_s(src, dst) * ((t.phase, t.src, t.dst) in begun)
            begun.add((t.phase, t.src, t.dst))
        of, level = (t.phase, 0) if looped else levels.sent[t]
        links = placement.links(src, dst) if src != dst else ()
        sends.append(StageSend(of, level, t.src, t.dst, looped, seconds, links))
    update_s = [a + b for a, b in zip(load.update, between.seconds, strict=True)]
    fragments = []
    for s in range(plan.stages):
        fragments.append(FragmentSeconds("forward", s, 0, load.forward[s]))
        fragments.append(FragmentSeconds("backward", s, 0, load.backward[s]))
        if s in split:
            fragments.append(FragmentSeconds("weight", s, 0, load.weight[s]))
        if levels.prepare[s] >= 0:
            fragments.append(FragmentSeconds("prepare", s, levels.prepare[s], load.prepare[s]))
        if levels.update[s] >= 0 or update_s[s]:
            fragments.append(FragmentSeconds("update", s, max(0, levels.update[s]), update_s[s]))
    task_s = task_start_seconds(placement.cluster, placement.groups)
    priced = PricedProgram(groups, tuple(fragments), tuple(sends), tuple(memory), task_s)
    return Pipeline(shape, priced, priced.costs(limit_bytes), memory, load, between)
