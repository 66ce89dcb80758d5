"""One program laid out on the devices of one replica of a stage: what all pipelines over such replicas share.

Owns how the sharding search is asked: on the whole program, as if one replica ran all stages, without or with the
memory that a pipeline leaves to each. Chooses nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rhino.deadline import NEVER, Deadline
from rhino.machine import Cluster
from rhino.pipeline.cut import plan as stages
from rhino.pipeline.cut.pieces import stacks
from rhino.pipeline.search.breakdown import OpSeconds, op_breakdown
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.distributed import ElementwiseUpdate, elementwise_updates, shared_bytes
from rhino.pipeline.search.fragment_lives import Span
from rhino.pipeline.search.placement import part_of
from rhino.pipeline.search.spread import Spread
from rhino.program.data import Graph
from rhino.program.memory import Lifetimes, lifetimes
from rhino.sharding.carry import carry
from rhino.sharding.cones import build_problem
from rhino.sharding.kept import spans, split_axes
from rhino.sharding.planner import MeshSearch, Options
from rhino.sharding.problem import Problem
from rhino.sharding.solution import Solution
from rhino.sharding.symmetry import Quotient, tie_repeats
from rhino.sharding.time_model import TimeModel


@dataclass(frozen=True)
class Prepared:
    """A program in loop form, ready to be laid out on any mesh and cut into any stages.

    `backward[o]` says whether op o is of the backward pass; ops of a region are what their parent is. `updates` are
    those that replicas of a stage can share out.
    """

    graph: Graph
    problem: Problem
    quotient: Quotient
    life: Lifetimes
    ready: stages.PreparedStep
    backward: Sequence[bool]
    updates: Sequence[ElementwiseUpdate]


def prepare(graph: Graph) -> Prepared:
    """Reads the decisions of a program once for all meshes and stages.

    A fragment ends with its micro-batch: sums that XLA would move behind the loop are made in every one.

    Raises:
      RhinoError: the program has no micro-batch loop.
    """
    ready = stages.prepare_step(graph)
    backward = [False] * len(graph.ops)
    for i in ready.phases.backward:
        end = max(i + 1, graph.ops[i].region_end)
        backward[i:end] = [True] * (end - i)
    # Replicas share updates out; only state that is there already may lie otherwise than its parameter.
    problem = build_problem(graph, stacks(ready.step.graph), parted=1.0 if graph.stage_pins else 0.0)
    for transfer in problem.transfers:
        if transfer.op >= 0 and graph.ops[transfer.op].parent == graph.microbatch_loop:
            transfer.late = transfer.trips
    return Prepared(
        graph, problem, tie_repeats(problem), lifetimes(graph), ready, backward, elementwise_updates(ready.step)
    )


@dataclass(frozen=True)
class Sharded:
    """A program laid out: the plan, and what it takes op by op on one device.

    By value, `spread` is how it lies on one replica and `local` its bytes on each device.
    """

    solution: Solution
    seconds: OpSeconds
    spread: Sequence[Spread]
    local: Sequence[int]
    copies: Sequence[Span]

    @property
    def mesh(self) -> tuple[int, ...]:
        """Sizes of the mesh of one replica."""
        return tuple(n for _, n in self.solution.mesh)


# By the width of a stage, the whole program laid out on so many devices: of it a stage takes what it runs.
Layouts = Mapping[int, Sharded]


def lay_out(
    prepared: Prepared,
    replica: Cluster,
    level: str,
    mesh: tuple[int, ...] | None = None,
    count: int = 1,
    in_flight: int = 0,
    replicas: int = 1,
    memory_limit: int = 0,
    axes: tuple[str, ...] = (),
    deadline: Deadline = NEVER,
) -> Sharded | None:
    """The best plan of the program on the devices of one replica.

    Args:
      replica: the devices of one replica.
      mesh: its shape, if the user gave one.
      count, in_flight, replicas: with a limit, how many stages share the program, how many micro-batches each saves
        for, and how many replicas may share optimizer state out.
      memory_limit: bytes per device; 0 leaves memory to be judged by stage.
      axes: names of the mesh's axes, where they are known, too.
      deadline: when the best so far is taken.

    Returns: None if nothing fits the limit.
    """
    life = prepared.life
    limit = 1 << 62
    if memory_limit:
        life = pipelined(prepared, count, in_flight)
        shared = shared_bytes(prepared.ready.step, prepared.updates) // replica.num_devices
        limit = count * memory_limit + shared - shared // replicas
    options = Options(
        level=level,
        mesh=mesh,
        axes=axes,
        memory_limit=limit,
        life=life,
        prepared=(prepared.problem, prepared.quotient),
        deadline=deadline,
    )
    search = MeshSearch(prepared.graph, TimeModel(replica), options)
    # Why not, with the smallest plan there is, would take longer than the search.
    if not search.run() and memory_limit:
        return None
    solution = search.solution()
    _, copies = spans(solution.costs, solution.states, prepared.life)
    mesh = tuple(n for _, n in solution.mesh)
    # What is fused away within a stage has bytes where it is sent to another.
    spread = [Spread(mesh, split_axes(solution.costs, solution.states, v.index)) for v in prepared.graph.values]
    local = [v.nbytes // s.tiles for v, s in zip(prepared.graph.values, spread, strict=True)]
    return Sharded(solution, op_breakdown(solution.costs, solution.states), spread, local, copies)


def lay_out_within(
    prepared: Prepared,
    cluster: Cluster,
    shape: Shape,
    width: int,
    mesh: tuple[int, ...] | None,
    memory_limit: int,
    axes: tuple[str, ...] = (),
    deadline: Deadline = NEVER,
) -> Sharded | None:
    """As `lay_out` for the stages of one width; with a limit, with the memory that a pipeline leaves to each.

    The program is then that of as many stages of this width as the devices would make.
    """
    replica = part_of(cluster, width)
    prepared = _pinned(prepared, [s for s, w in enumerate(shape.stage_widths) if w == width])
    if not memory_limit:
        return lay_out(prepared, replica, "O1", mesh, axes=axes, deadline=deadline)
    return lay_out(prepared, replica, "O1", mesh, *sharing(shape, width), memory_limit, axes, deadline)


def carried(
    prepared: Prepared, cluster: Cluster, shape: Shape, width: int, layout: Sharded, ops: Mapping[int, int]
) -> Solution:
    """The plan for the stages of one width, of the program that its sums were split in since.

    Args:
      prepared: the program as it is now.
      ops: by number there, the number of the same operation in the program that was laid out.
    """
    prepared = _pinned(prepared, [s for s, w in enumerate(shape.stage_widths) if w == width])
    return carry(layout.solution, prepared.problem, ops, part_of(cluster, width))


def _pinned(prepared: Prepared, stages: Sequence[int]) -> Prepared:
    """The program with what is pinned to these stages split as it is there."""
    graph = prepared.graph
    there = {v: pin for s in reversed(stages) for v, pin in graph.stage_pins.get(s, {}).items()}
    if not there:
        return prepared
    # A result in the buffer of an argument lies as that does, however it is made.
    for argument in graph.arguments:
        v, kept = argument.value, graph.outputs[argument.alias] if argument.alias >= 0 else argument.value
        if kept != v and v in there and kept in there and there[kept][1] == there[v][1]:
            del there[kept]
    loose = {v: given for v, given in graph.loose.items() if v not in there}
    graph = replace(graph, pins={**graph.pins, **there}, loose=loose)
    problem = replace(prepared.problem, graph=graph)
    return replace(prepared, graph=graph, problem=problem, quotient=tie_repeats(problem))


def sharing(shape: Shape, width: int) -> tuple[int, int, int]:
    """How many groups of a width would share the program, how many micro-batches each saves for, and replicas of it."""
    of_stages = shape.in_flight
    in_flight = [sum(of_stages[g :: shape.groups]) for g in range(shape.groups)]
    return -(-sum(shape.widths) // width), -(-max(in_flight) // shape.chunks), shape.replicas


def pipelined(prepared: Prepared, count: int, in_flight: int) -> Lifetimes:
    """Lifetimes by which the whole program's peak is the sum of its stages' peaks.

    All stages hold their arguments and accumulators, once, and what they save, `in_flight` times; what lives shortly is
    one stage's at any moment of the program's order, but every stage has its turn, so it counts for each.
    """
    graph, backward = prepared.graph, prepared.backward
    loop = graph.microbatch_loop
    end = graph.ops[loop].region_end - 1
    weights: dict[int, int] = {}
    for v, born, dies in prepared.life.intervals:
        if born <= loop and dies >= end:
            weights[v] = 1
        elif loop < born <= end and not backward[born] and dies <= end and backward[dies]:
            weights[v] = max(1, in_flight)
    return replace(prepared.life, weights=weights, others=count)
