"""Published pipelines, and replicas that add up gradients once a step, priced by the joint search's own functions.

Owns how stages are given instead of searched: equal numbers of layers, the embedding in the first and the loss in the
last. One stage of each kind is priced, first, middle and last; a pipeline of many has the middle one often. That is
exact: between the ends there are layers only, and these are a loop, whose time is its trips'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from bench._published_layouts import RunLayout, mesh_of, pins
from bench._published_models import Model, NotExpressed
from bench._published_programs import looped, ring_attention
from bench._published_software import Software, totals
from rhino.experts.facts import read
from rhino.machine import Cluster
from rhino.pipeline.cut.plan import StageMachine, StagePlan, plan_step
from rhino.pipeline.schedule import make_schedule, simulate
from rhino.pipeline.schedule.costs import Edge, PipelineCosts
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.pipeline import Pipeline, pipeline
from rhino.pipeline.search.placement import Placement, part_of
from rhino.pipeline.search.sharded import Prepared, Sharded, lay_out, prepare

_NO_LIMIT = 1 << 62
_KINDS = 3  # first, middle, last


@dataclass(frozen=True)
class Stages:
    """A program with one stage of each kind, all of so many layers, laid out on one replica of a stage."""

    prepared: Prepared
    sharded: Sharded
    plan: StagePlan
    shape: Shape
    layers: int

    def priced(self, cluster: Cluster, starts: tuple[int, ...]) -> Pipeline:
        """The costs with stages at these devices of a cluster."""
        block = self.shape.width * self.shape.replicas
        placement = Placement(cluster, (block,) * self.shape.stages, starts)
        return pipeline(
            self.prepared,
            {self.shape.width: self.sharded},
            self.plan,
            self.shape,
            placement,
            _NO_LIMIT,
            distribute=False,
        )


def pipelined(model: Model, layout: RunLayout, cluster: Cluster, era: Software) -> tuple[float, dict[str, float]]:
    """Seconds of a step and its parts, of one device in the mean.

    Raises:
      NotExpressed: there are fewer layers than stages, or stages are parts of hosts that do not divide them.
    """
    count = layout.stages * layout.chunks
    block = cluster.num_devices // layout.stages
    if block % cluster.devices_per_host and cluster.devices_per_host % block:
        raise NotExpressed(f"stages of {block} devices are neither hosts nor parts of one")
    dealt = deal_layers(model.layers, count)
    stages = stages_of(model, layout, cluster, era, min(count, _KINDS), dealt[0])
    # Stage by stage: the kind it is of, and how many of its layers it has.
    kinds = [0, *[1] * (count - 2), stages.shape.stages - 1][:count]
    share = [layers / stages.layers for layers in dealt]
    starts = [s % layout.stages * block for s in range(count)]
    whole = Placement(cluster, (block,) * count, tuple(starts))
    near = stages.priced(cluster, _apart(cluster, block, stages.shape.stages, False))
    far = near
    if count > 1 and layout.stages > 1 and block < cluster.devices_per_host < cluster.num_devices:
        far = stages.priced(cluster, _apart(cluster, block, stages.shape.stages, True))
    costs = repeated(near, far, kinds, share, whole, layout.stages, era)
    name = "interleaved-1f1b" if layout.chunks > 1 else "1f1b"
    step_s = simulate(make_schedule(name, costs, layout.slices), costs).step_time_s
    return step_s, _parts(stages, near, kinds, share, layout.stages, era)


def deal_layers(layers: int, stages: int) -> list[int]:
    """Layers of each stage: equal numbers; what is left over goes to stages in the middle, as the ends have more to do.

    Raises:
      NotExpressed: fewer layers than stages.
    """
    each, left = divmod(layers, stages)
    if not each:
        raise NotExpressed(f"{layers} layers for {stages} stages")
    order = [*range(1, stages - 1), 0, stages - 1]
    more = set(order[:left])
    return [each + (s in more) for s in range(stages)]


def stages_of(model: Model, layout: RunLayout, cluster: Cluster, era: Software, kinds: int, each: int) -> Stages:
    """The program with `kinds` stages of `each` layers, laid out on one replica of a stage."""
    inside = mesh_of(layout, inside=True)
    width = prod(size for _, size in inside)
    replicas = layout.data * layout.tensor * layout.context // width
    slices = replicas * layout.slices
    small = model.with_layers(kinds * each)
    graph = looped(small, layout.examples, slices, cluster, kinds)
    if layout.context > 1:
        ring_attention(graph)
    if inside:
        proposal = pins(read(graph), layout, inside)
        graph = replace(graph, pins={v: ("published", dims) for v, dims in proposal.pins.items()})
    prepared = prepare(graph)
    sizes, axes = tuple(size for _, size in inside) or None, tuple(axis for axis, _ in inside)
    sharded = lay_out(prepared, part_of(cluster, width), "O1", sizes, axes=axes)
    assert sharded is not None  # memory is not limited
    sharded = replace(sharded, seconds=era.seconds(graph, sharded.seconds, layout.updaters))
    shape = Shape((width,) * kinds, replicas, slices)
    return Stages(prepared, sharded, _cut(prepared, shape), shape, each)


def _cut(prepared: Prepared, shape: Shape) -> StagePlan:
    """The stages as published: cut by layers alone, as if nothing else took time."""
    graph = prepared.graph
    weight = [0.0] * len(graph.ops)
    for op in graph.ops:
        if op.name == "stablehlo.while" and op.parent == graph.microbatch_loop:
            weight[op.index] = 1.0
    plain = ((0.0,) * shape.stages,) * shape.stages
    machine = StageMachine(
        shape.stages, shape.microbatches, (1.0,) * shape.stages, shape.in_flight, byte_s=plain, latency_s=plain
    )
    plan = plan_step(prepared.ready, weight, machine)
    found = [plan.stage_of_op[o] for o, w in enumerate(weight) if w and plan.phase_of_op[o] == "forward"]
    if shape.stages > 1 and found != list(range(shape.stages)):
        raise NotExpressed(f"its layers are not one loop that stages share: they are cut {found}")
    return plan


def _apart(cluster: Cluster, block: int, kinds: int, far: bool) -> tuple[int, ...]:
    """First devices of neighbouring stages: of one host, or (`far`) each of another."""
    step = max(block, cluster.devices_per_host) if far else block
    return tuple(s * step % cluster.num_devices for s in range(kinds))


def repeated(
    near: Pipeline,
    far: Pipeline,
    kinds: Sequence[int],
    share: Sequence[float],
    whole: Placement,
    groups: int,
    era: Software,
) -> PipelineCosts:
    """The costs of all stages, from those of one of each kind.

    Args:
      near, far: priced with stages side by side, and on different hosts.
      kinds, share: by stage, its kind, and its layers over those that the kind was priced with.
    """
    one = near.costs
    edges = []
    for s in range(len(kinds) - 1):
        found = (near if whole.same_host(s, s + 1) or far is near else far).costs.edges
        edge = next(e for e in found if (e.src, e.dst) == _between(s, kinds))
        edges.append(Edge(s, s + 1, edge.forward_s, edge.backward_s, whole.links(s, s + 1), whole.links(s + 1, s)))
    # What stages exchange once a step (a tied embedding's gradient, norms), one after the other.
    apply_s = [(one.apply_s[k] - era.sums * near.replicas.seconds[k]) * n for k, n in zip(kinds, share, strict=True)]
    apply_s[-1] += sum(exchange.seconds for exchange in one.exchanges)
    return PipelineCosts(
        forward_s=tuple(one.forward_s[k] * n for k, n in zip(kinds, share, strict=True)),
        backward_s=tuple(one.backward_s[k] * n for k, n in zip(kinds, share, strict=True)),
        prepare_s=tuple(one.prepare_s[k] for k in kinds),
        apply_s=tuple(apply_s),
        edges=tuple(edges),
        groups=tuple(s % groups for s in range(len(kinds))),
    )


def _between(s: int, kinds: Sequence[int]) -> tuple[int, int]:
    """The two priced stages that stage s and the next are like; two in the middle are like the first two."""
    a, b = kinds[s], kinds[s + 1]
    return (a, b) if a < b else (a - 1, b)


def _parts(
    stages: Stages, priced: Pipeline, kinds: Sequence[int], share: Sequence[float], groups: int, era: Software
) -> dict[str, float]:
    """Seconds of a step by part, of one device in the mean over groups."""
    graph, plan, replicas = stages.prepared.graph, stages.plan, stages.shape.replicas
    loop = graph.microbatch_loop
    end = graph.ops[loop].region_end
    times = [0.0] * stages.shape.stages
    for kind, n in zip(kinds, share, strict=True):
        times[kind] += n / groups
    often = [0.0] * len(graph.ops)
    for o, s in enumerate(plan.stage_of_op):
        if s >= 0 and plan.phase_of_op[o]:
            often[o] = times[s] / (replicas if loop < o < end else 1)
    parts = totals(graph, stages.sharded.seconds, often)
    parts["replicas"] = (1 - era.sums) * sum(s * n for s, n in zip(priced.replicas.seconds, times, strict=True))
    return parts
