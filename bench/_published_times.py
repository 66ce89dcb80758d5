"""What Rhino predicts of a model in a given layout, and which parts of the step that time is.

Owns how the sharding search is asked for one program with pinned arguments; pipelines are in `_published_pipelines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench._published_layouts import RunLayout, mesh_of, pins
from bench._published_models import Model
from bench._published_pipelines import pipelined
from bench._published_programs import looped, ring_attention, whole
from bench._published_software import Software, totals
from rhino.experts.facts import read
from rhino.machine import Cluster
from rhino.pipeline.search.breakdown import op_breakdown
from rhino.sharding import Options, plan_sharding

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Predicted:
    """Seconds of a step, and `parts` of it, which add up to it."""

    step_s: float
    parts: Mapping[str, float]


def predict(model: Model, layout: RunLayout, cluster: Cluster, era: Software) -> Predicted:
    """The step of a model in a layout on a cluster, memory not limited: the run did fit.

    Raises:
      NotExpressed, NotApplicable, RhinoError: it cannot be laid out so; says why.
    """
    if layout.pipelined:
        step_s, parts = pipelined(model, layout, cluster, era)
    else:
        step_s, parts = _one_program(model, layout, cluster, era)
    parts = {**parts, "bubble": step_s - sum(parts.values())}
    step_s /= era.busy
    return Predicted(step_s, {**parts, "idle": (1 - era.busy) * step_s})


def _one_program(model: Model, layout: RunLayout, cluster: Cluster, era: Software) -> tuple[float, dict[str, float]]:
    """SPMD: arguments pinned as the run had them, the rest laid out by the search."""
    if layout.slices > 1:
        graph = looped(model, layout.examples, layout.slices, cluster)
    else:
        graph = whole(model, layout.examples, cluster)
    if layout.context > 1:
        ring_attention(graph)
    options = Options(memory_limit=_NO_LIMIT, mesh=layout.searched or None)
    if not layout.searched:
        mesh = mesh_of(layout, inside=False)
        proposal = pins(read(graph), layout, mesh)
        graph = replace(graph, pins={v: ("published", dims) for v, dims in proposal.pins.items()})
        sizes, axes = tuple(size for _, size in mesh) or (1,), tuple(axis for axis, _ in mesh) or ("data",)
        options = replace(options, mesh=sizes, axes=axes)
    solution = plan_sharding(graph, cluster, options)
    seconds = era.seconds(graph, op_breakdown(solution.costs, solution.states), layout.updaters)
    # What is left are sums behind a loop over micro-batches, once a step.
    seconds = replace(seconds, hideable=[s * (1 - era.gathers) for s in seconds.hideable])
    parts = totals(graph, seconds, [1.0] * len(graph.ops))
    return sum(parts.values()), parts
