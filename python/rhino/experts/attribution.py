"""What a plan sends, by the argument that it is sent for: weights gathered, their gradients, and products with them.

Owns that attribution, of the collectives of one prediction. Knows no other plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoPlan
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.experts.facts import cones_of_params
from rhino.ir.import_graph import import_graph
from rhino.ir.meshes import given_mesh
from rhino.ir.propagated import RESHARDS, give_rules, read_propagated
from rhino.ir.read_layouts import read_layouts
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.plan import PlanData, is_pipeline
from rhino.program.data import Argument, Graph, Op
from rhino.sharding.cones import build_problem
from rhino.sharding.estimate import Estimated, collectives, estimate, estimate_plan, estimate_propagated
from rhino.sharding.problem import Problem
from rhino.sharding.replay import UnreadableError


@dataclass(frozen=True, slots=True)
class Share:
    """Part of what a device sends in a step: `seconds` of it are before any of them hide behind computing."""

    sent_bytes: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Share) -> Share:
        return Share(self.sent_bytes + other.sent_bytes, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class Attributed:
    """What a plan sends.

    Attributes:
      arguments: by the number of the parameter that it is for.
      rest: of activations, and of what is no product with one parameter.
      kinds: all of it by kind of collective.
    """

    arguments: Mapping[int, Share]
    rest: Share
    kinds: Mapping[str, Share]


def attribute(plan: PlanData, cluster: Cluster) -> Attributed | None:
    """What a plan of one program sends, and for which parameter; None of a pipeline, whose parts are apart.

    A collective belongs to the parameter that its operation reads, or whose gradient it makes: what an all-reduce adds
    up after a product with a weight is sent because that weight is split as it is.
    """
    if is_pipeline(plan) or not plan.mesh:
        return None
    source = plan.module if isinstance(plan.source, str) or plan.source is None else to_bytecode(plan.source)
    data = source.encode() if isinstance(source, str) else source
    graph, found = _priced(parse_bytes(data, make_context()), cluster)
    problem = build_problem(graph)
    cones = cones_of_params(graph, problem)
    numbers = {argument.value: i for i, argument in enumerate(graph.arguments)}
    arguments: dict[int, Share] = {}
    kinds: dict[str, Share] = {}
    rest = Share()
    assert found.costs is not None
    for event in collectives(found.costs, found.states, every=True):
        share = Share(event.nbytes * event.trips, event.seconds * event.trips)
        kinds[event.kind] = kinds.get(event.kind, Share()) + share
        owner = _owner(graph, problem, cones, graph.ops[event.op])
        if owner is None:
            rest += share
        else:
            at = numbers[owner.value]
            arguments[at] = arguments.get(at, Share()) + share
    return Attributed(arguments, rest, {kind: kinds[kind] for kind in sorted(kinds)})


def _owner(graph: Graph, problem: Problem, cones: Mapping[int, list[Argument]], op: Op) -> Argument | None:
    """The parameter, or the gradient of one, among what an operation reads and makes."""
    for v in (*op.operands, *op.results):
        size = prod(graph.values[v].shape)
        for argument in cones.get(problem.node_of[v], ()):
            shape = graph.values[argument.value].shape
            # Positions added to one example, say, are in one cone with all activations; a loop reads a layer at a time.
            if size in (prod(shape), prod(shape[1:])) and shape:
                return argument
    return None


def _priced(module: ir.Module, cluster: Cluster) -> tuple[Graph, Estimated]:
    """The program of a planned module and its prediction, the one that the plan has."""
    mesh, plan = given_mesh(module), RhinoPlan.of(module)
    if plan is not None and plan["level"] == "O0":
        give_rules(module)
        PassManager(module.context).add(RESHARDS).run(module)
        graph = read_propagated(module)
        return graph, estimate_propagated(graph, cluster, mesh)
    try:
        graph, written = read_layouts(module)
        return graph, estimate_plan(graph, written, cluster, mesh)
    except UnreadableError:
        graph = import_graph(module, read_op_shardings=True)
        return graph, estimate(graph, cluster, mesh, strict=False)
