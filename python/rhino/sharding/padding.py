"""What padding would give: dimensions of arguments that the devices do not divide, and the plan if they did.

Owns which of them are looked at, and the program with one of them rounded up. Chooses no layout itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.padding import Unsplit
from rhino.program.data import Graph, Op, Rule, Value
from rhino.sharding.planner import Options, plan_sharding
from rhino.sharding.solution import Solution
from rhino.sharding.uneven import pays

# Each costs a search of one mesh.
_MOST = 2
# Dimensions along which there is less than this share of all arithmetic do not matter.
_LITTLE = 0.01

# (value, dimension).
Place = tuple[int, int]


def unsplit(
    graph: Graph,
    cluster: Cluster,
    options: Options,
    solution: Solution,
    progress: Callable[[int, int, str], None] | None = None,
) -> tuple[Unsplit, ...]:
    """The dimensions that a plan does not split because of their sizes, those with most work first, and what would be.

    Args:
      options: what the plan was searched with. After its deadline nothing is looked for.
      solution: the plan.
      progress: called with (done, total, label) before each search.
    """
    found = []
    again = replace(
        options,
        level="O1",
        mesh=tuple(size for _, size in solution.mesh),
        axes=tuple(axis for axis, _ in solution.mesh),
        deadline=options.deadline.with_plan(),
        prepared=None,
    )
    devices = prod(size for _, size in solution.mesh)
    places = _places(graph, solution, devices) if not options.deadline.over() else []
    for done, (argument, dim, alike) in enumerate(places):
        value = graph.values[graph.arguments[argument].value]
        size = value.shape[dim]
        goal = -(-size // devices) * devices
        if options.deadline.over():
            break
        if progress is not None:
            progress(done, len(places), f"{graph.arguments[argument].name} padded")
        try:
            better = plan_sharding(_resized(graph, alike, size, goal), cluster, again).predicted
        except RhinoError:
            continue  # padded it does not fit, or not with the shardings that were given
        parts = _parts(solution, value.index, dim)
        name = graph.arguments[argument].name
        found.append(Unsplit(name, dim, size, parts, goal, better.step_time_s, better.memory.peak_bytes))
    return tuple(found)


def _places(graph: Graph, solution: Solution, devices: int) -> list[tuple[int, int, _Alike]]:
    """(argument, dimension, all that has its size for the same reason), one of each kind, that with most work first."""
    values = graph.values
    order = sorted(range(len(graph.arguments)), key=lambda i: (-values[graph.arguments[i].value].nbytes, i))
    kinds: list[tuple[int, int, _Alike]] = []
    uses: _Uses | None = None
    for i in order:
        v = graph.arguments[i].value
        for d, n in enumerate(values[v].shape):
            if n % devices == 0 or not pays(n, devices) or _parts(solution, v, d) == devices:
                continue
            if any((v, d) in alike.dims for _, _, alike in kinds):
                continue
            uses = uses or _Uses.of(graph)
            alike = _alike(uses, (v, d))
            if alike is not None:
                kinds.append((i, d, alike))
    total = sum(op.flops * op.trips for op in graph.ops)
    work = [_work(graph, alike) for _, _, alike in kinds]
    best = sorted(range(len(kinds)), key=lambda k: (-work[k], k))[:_MOST]
    return [kinds[k] for k in best if work[k] > _LITTLE * total]


def _work(graph: Graph, alike: _Alike) -> int:
    """The arithmetic along dimensions."""
    return sum(graph.ops[o].flops * graph.ops[o].trips for o in {o for o, _ in alike.factors})


def _parts(solution: Solution, v: int, d: int) -> int:
    sizes = dict(solution.mesh)
    dims = solution.dims(v)
    return prod(sizes[axis] for axis in dims[d]) if dims else 1


@dataclass(frozen=True, slots=True)
class _Alike:
    """Dimensions that have one size for one reason, and the factors of ops that do."""

    dims: frozenset[Place]
    factors: frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Uses:
    """By value the ops that read or make it, and what shares its buffer: values of a loop, an argument and its next."""

    graph: Graph
    touching: list[list[Op]]
    same: dict[int, list[tuple[int, ...]]]

    @classmethod
    def of(cls, graph: Graph) -> _Uses:
        touching: list[list[Op]] = [[] for _ in graph.values]
        same: dict[int, list[tuple[int, ...]]] = {}
        for op in graph.ops:
            for v in dict.fromkeys((*op.operands, *op.results)):
                touching[v].append(op)
            for tie in op.ties:
                for v in tie:
                    same.setdefault(v, []).append(tie)
        for argument in graph.arguments:
            if argument.alias >= 0:
                tie = (argument.value, graph.outputs[argument.alias])
                for v in tie:
                    same.setdefault(v, []).append(tie)
        return cls(graph, touching, same)


def _alike(uses: _Uses, start: Place) -> _Alike | None:
    """All that must be padded together with a dimension; None where that is not known, as inside of a kernel."""
    graph, touching, same = uses.graph, uses.touching, uses.same
    size = graph.values[start[0]].shape[start[1]]
    dims: dict[Place, None] = {start: None}
    factors: dict[tuple[int, int], None] = {}
    queue = [start]
    for v, d in queue:
        shape = graph.values[v].shape
        reached = [(u, d) for tie in same.get(v, ()) for u in tie if graph.values[u].shape == shape]
        for op in touching[v]:
            if op.kernel is not None or op.manual is not None:
                return None
            for f in _factors(op, v, d, size):
                if (op.index, f) not in factors:
                    factors[op.index, f] = None
                    reached += [(u, e) for u, mapping in _ends(op) for e, dim in enumerate(mapping) if f in dim]
        for place in reached:
            if place not in dims:
                dims[place] = None
                queue.append(place)
    return _Alike(frozenset(dims), frozenset(factors))


def _ends(op: Op) -> list[tuple[int, tuple[tuple[int, ...], ...]]]:
    """The operands and results of an op, and the factors of each dimension."""
    assert op.rule is not None
    operands = zip(op.operands, op.rule.operands, strict=True)
    return [*operands, *zip(op.results, op.rule.results, strict=True)]


def _factors(op: Op, v: int, d: int, size: int) -> list[int]:
    """The factors of an op that a dimension of a value has its size from."""
    if op.rule is None:
        return []
    found = {f for u, mapping in _ends(op) if u == v and mapping for f in mapping[d]}
    return sorted(f for f in found if op.rule.factor_sizes[f] % size == 0)


def _resized(graph: Graph, alike: _Alike, size: int, goal: int) -> Graph:
    """The program with everything of one kind rounded up."""
    shapes = [list(value.shape) for value in graph.values]
    for v, d in alike.dims:
        shapes[v][d] = shapes[v][d] // size * goal
    values = [
        Value(v.index, tuple(shape), v.dtype, v.producer, v.loop) for v, shape in zip(graph.values, shapes, strict=True)
    ]
    changed: dict[int, list[int]] = {}
    for o, f in sorted(alike.factors):
        changed.setdefault(o, []).append(f)
    ops = [_resized_op(op, changed[op.index], size, goal) if op.index in changed else op for op in graph.ops]
    return replace(graph, values=values, ops=ops)


def _resized_op(op: Op, factors: list[int], size: int, goal: int) -> Op:
    assert op.rule is not None
    sizes = [n // size * goal if f in factors else n for f, n in enumerate(op.rule.factor_sizes)]
    flops = op.flops * goal ** len(factors) // size ** len(factors)
    rule: Rule = replace(op.rule, factor_sizes=tuple(sizes))
    return replace(op, rule=rule, flops=flops)
