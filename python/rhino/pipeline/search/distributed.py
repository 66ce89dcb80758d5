"""The distributed optimizer of a pipeline: replicas of a stage each update a part of its parameters, and gather them.

Owns which updates can be shared out so (docs/design/pipelines.md, "Replicas"). What that costs is in `between`; how a
module says it is `rhino.distributed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhino.pipeline.cut.pieces import boundary
from rhino.pipeline.cut.plan import StagePlan
from rhino.pipeline.cut.step import LoopForm
from rhino.program.data import Argument, Graph, Op
from rhino.program.disjoint import DisjointSets
from rhino.program.fusible import is_elementwise
from rhino.sharding.solution import Solution


@dataclass(frozen=True, slots=True)
class ElementwiseUpdate:
    """What an update combines element by element behind the loop: each replica can do so with a part of it.

    Attributes:
      ops: what makes its values.
      state: arguments of the optimizer, by position, and `held` their values.
      sums: results of the loop.
      parameters: next values of parameters.
      dim: the dimension that replicas share out already, of state that is on stages; -1 where that is open.
    """

    ops: tuple[int, ...]
    state: tuple[int, ...]
    held: tuple[int, ...]
    sums: tuple[int, ...]
    parameters: tuple[int, ...]
    dim: int = -1


def elementwise_updates(step: LoopForm) -> list[ElementwiseUpdate]:
    """The updates with optimizer state whose values nothing reads but each other, sums of them, and the step's caller.

    What is given stays as it is, and so does state that is on stages already. Time is linear in ops.
    """
    graph = step.graph
    if not any(a.role == "opt_state" and a.alias >= 0 for a in graph.arguments):
        return []
    return list(_UpdateReader(graph, step).run())


def shared_bytes(step: LoopForm, updates: Sequence[ElementwiseUpdate]) -> int:
    """Bytes of the state that replicas may share out, undivided."""
    return sum(step.graph.values[v].nbytes for update in updates for v in update.held)


class _UpdateReader:
    """State of one reading."""

    def __init__(self, graph: Graph, step: LoopForm) -> None:
        self.graph, self.cloned = graph, step.cloned
        self.users, self.joins = graph.users(), boundary(graph)
        self.end = graph.ops[step.loop].region_end
        self.sums = {carry.result for carry in step.carries}
        self.arguments = {a.value: k for k, a in enumerate(graph.arguments)}
        self.next = dict(_next_values(graph))
        self.given = graph.pins.keys() | graph.loose.keys()

    def run(self) -> Iterator[ElementwiseUpdate]:
        graph, sets = self.graph, DisjointSets(len(self.graph.values))
        working = [op for op in graph.ops[self.end :] if self.works(op)]
        for op in working:
            for v in op.operands:
                maker = graph.values[v].producer
                # What is made of constants is made where it is read: it joins nothing.
                if graph.values[v].shape and not (maker >= 0 and self.cloned[maker]):
                    sets.join(op.results[0], v)
        made: dict[int, list[int]] = {}
        for op in working:
            made.setdefault(sets.find(op.results[0]), []).append(op.index)
        for ops in made.values():
            found = self.update(ops)
            if found is not None:
                yield found

    def works(self, op: Op) -> bool:
        """Whether an operation is element by element, and some stage's."""
        own = op.parent < 0 and len(op.results) == 1 and not self.cloned[op.index]
        return own and bool(self.graph.values[op.results[0]].shape) and is_elementwise(self.graph, op)

    def update(self, ops: Sequence[int]) -> ElementwiseUpdate | None:
        """An update of these operations; None if it has no state, or something else needs all of a value."""
        graph, among = self.graph, set(ops)
        results = [graph.ops[o].results[0] for o in ops]
        reads = dict.fromkeys(v for o in ops for v in graph.ops[o].operands if graph.values[v].shape)
        roles = {v: graph.arguments[k].role for v in reads if (k := self.arguments.get(v, -1)) >= 0}
        returned = {self.next[v].value for v in results if v in self.next}
        state = [v for v, role in roles.items() if role == "opt_state" and v in returned]
        sums = [v for v in reads if v in self.sums]
        # State on stages is shared out there or not, all of it alike.
        pinned = {graph.shared_out.get(v, -1) for v in state if v in graph.stages}
        if not state or not self.given.isdisjoint([*reads, *results]) or len(pinned) > 1 or pinned == {-1}:
            return None
        for v in (*state, *sums, *results):
            if not all(self.takes_parts(o, among) for o in self.users[v]) or graph.outputs.count(v) > (v in self.next):
                return None
        parameters = [v for v in results if v in self.next and self.next[v].value not in state]
        if any(self.next[v].role != "param" for v in parameters):
            return None
        where = tuple(self.arguments[v] for v in state)
        return ElementwiseUpdate(tuple(ops), where, tuple(state), tuple(sums), tuple(parameters), *pinned)

    def takes_parts(self, o: int, among: set[int]) -> bool:
        """Whether an operation can read a part of a value: one of the update, a sum, or what puts rows together."""
        op = self.graph.ops[o]
        return o in among or o in self.joins or (op.name == "stablehlo.reduce" and op.parent < 0 and o >= self.end)


def _next_values(graph: Graph) -> Iterator[tuple[int, Argument]]:
    """The next value of each argument, or of its rows that a stage has."""
    rows: dict[int, list[Argument]] = {}
    for argument in graph.arguments:
        if argument.alias >= 0:
            rows.setdefault(argument.alias, []).append(argument)
    joins = boundary(graph)
    for alias, arguments in rows.items():
        result = graph.outputs[alias]
        maker = graph.values[result].producer
        if maker in joins:
            yield from zip(graph.ops[maker].operands, arguments, strict=False)
        elif len(arguments) == 1:
            yield result, arguments[0]


@dataclass(frozen=True, slots=True)
class Distributed:
    """The updates of a pipeline that replicas share out.

    Attributes:
      dims: by operation, the dimension of its result of which each replica makes a part.
      parts: values of which a device keeps a part of what it would.
      sums, parameters: results of the loop that are scattered over the replicas, and what is gathered from them.
      given: whether state is there so already.
    """

    dims: dict[int, int]
    parts: frozenset[int]
    sums: frozenset[int]
    parameters: frozenset[int]
    given: bool = False


NOTHING = Distributed({}, frozenset(), frozenset(), frozenset())


def distributed(
    step: LoopForm, updates: Sequence[ElementwiseUpdate], plan: StagePlan, solutions: Sequence[Solution], replicas: int
) -> Distributed:
    """Those that can be shared out: of one stage, in one layout, with a dimension that divides.

    Args:
      updates: `elementwise_updates` of the step.
      solutions: by stage, its layout.
    """
    if replicas == 1:
        return NOTHING
    graph = step.graph
    dims: dict[int, int] = {}
    parts: set[int] = set()
    sums: set[int] = set()
    parameters: set[int] = set()
    given = False
    apart = {step.carries[c].result for c in plan.sums}  # parts of several stages go to one, whole
    for update in updates:
        stages = {plan.stage_of_op[o] for o in update.ops} | {plan.stage_of_argument[k] for k in update.state}
        phases = {plan.phase_of_op[o] for o in update.ops}
        if len(stages) > 1 or phases != {"update"}:
            continue
        results = [graph.ops[o].results[0] for o in update.ops]
        solution = solutions[next(iter(stages))]
        dim = _dim(graph, results, solution, replicas, update.dim)
        if dim < 0:
            continue
        given = given or update.dim >= 0
        dims.update(dict.fromkeys(update.ops, dim))
        parts.update(update.held)
        parts.update(v for v in results if v not in update.parameters)
        sums.update(v for v in update.sums if v not in apart)
        parameters.update(update.parameters)
    return Distributed(dims, frozenset(parts), frozenset(sums), frozenset(parameters), given)


def _dim(graph: Graph, results: Sequence[int], solution: Solution, replicas: int, only: int) -> int:
    """The first dimension that replicas can share out, of what all lies alike, `only` that if not -1; -1 for none."""
    layouts = {dims for v in results if (dims := solution.dims(v)) is not None}
    if len(layouts) != 1:
        return -1
    (dims,) = layouts
    sizes = dict(solution.mesh)
    for d, (size, axes) in enumerate(zip(graph.values[results[0]].shape, dims, strict=True)):
        ways = replicas
        for axis in axes:
            ways *= sizes[axis]
        if size % ways == 0 and only in (d, -1):
            return d
    return -1
