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
from rhino.experts.facts import ProgramFacts, ProgramLeaf, read
from rhino.ir.import_graph import import_graph
from rhino.ir.meshes import given_mesh
from rhino.ir.propagated import RESHARDS, give_rules, read_propagated
from rhino.ir.read_layouts import read_layouts
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.plan import PlanData, is_pipeline
from rhino.program.data import Graph, Op
from rhino.program.operations import CONSTRAINTS
from rhino.sharding.estimate import Estimated, collectives, estimate, estimate_plan, estimate_propagated
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
    facts = read(graph)
    owned = _owned(facts)
    readers: dict[int, list[int]] = {}
    for op in graph.ops:
        for v in op.operands:
            readers.setdefault(v, []).append(op.index)
    arguments: dict[int, Share] = {}
    kinds: dict[str, Share] = {}
    rest = Share()
    assert found.costs is not None
    for event in collectives(found.costs, found.states, every=True):
        share = Share(event.nbytes * event.trips, event.seconds * event.trips)
        kinds[event.kind] = kinds.get(event.kind, Share()) + share
        owner = _owner(facts, owned, readers, graph.ops[event.op])
        if owner is None:
            rest += share
        else:
            arguments[owner.index] = arguments.get(owner.index, Share()) + share
    return Attributed(arguments, rest, {kind: kinds[kind] for kind in sorted(kinds)})


def _owned(facts: ProgramFacts) -> dict[int, list[ProgramLeaf]]:
    """By cone, the parameters in it, and those to which optimizer state in it belongs: gradients are in that cone."""
    found: dict[int, list[ProgramLeaf]] = {}
    for leaf in facts.leaves:
        of = leaf if leaf.role == "param" else facts.leaves[leaf.owner] if leaf.owner >= 0 else None
        if of is not None and of not in found.setdefault(facts.problem.node_of[leaf.value], []):
            found[facts.problem.node_of[leaf.value]].append(of)
    found.pop(-1, None)
    return found


def _owner(
    facts: ProgramFacts, owned: Mapping[int, list[ProgramLeaf]], readers: Mapping[int, list[int]], op: Op
) -> ProgramLeaf | None:
    """The parameter, or the gradient of one, among what an operation reads and makes, changes of layout aside."""
    graph = facts.graph
    given = [_before(graph, v) for v in op.operands]
    made = [_after(graph, readers, v) for v in op.results]
    for v in (*given, *made):
        size = prod(graph.values[v].shape)
        for leaf in owned.get(facts.problem.node_of[v], ()):
            # Positions added to one example, say, are in one cone with all activations; a loop reads a layer at a time.
            if leaf.shape and size in (prod(leaf.shape), prod(leaf.shape[1:])):
                return leaf
    return None


def _before(graph: Graph, v: int) -> int:
    """What a value was before its layout was changed."""
    producer = graph.values[v].producer
    while producer >= 0 and graph.ops[producer].name in CONSTRAINTS:
        v = graph.ops[producer].operands[0]
        producer = graph.values[v].producer
    return v


def _after(graph: Graph, readers: Mapping[int, list[int]], v: int) -> int:
    """What a value is after its layout was changed, where all that reads it is that change."""
    while len(by := readers.get(v, [])) == 1 and graph.ops[by[0]].name in CONSTRAINTS:
        v = graph.ops[by[0]].results[0]
    return v


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
