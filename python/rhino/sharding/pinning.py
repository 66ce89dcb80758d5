"""Shardings the user gave: the states they leave to the decisions that hold those values.

Owns that translation and its errors. Knows nothing of how states are chosen otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rhino.errors import RhinoError
from rhino.program.data import Dims, Graph, Loose, Op
from rhino.program.operations import CONSTRAINTS
from rhino.sharding.problem import Node, Problem, leading
from rhino.sharding.symmetry import Quotient

# The states that each axis of a mesh may have; None for any.
Open = tuple[frozenset[int] | None, ...]


@dataclass(frozen=True, slots=True)
class Pinned:
    """What the given shardings leave.

    Attributes:
      states: of each class that holds one.
      unmet: values with a constraint that cannot be kept.
      clashes: what is taken to be laid out like something that it is combined with, and is not: the names of both.
    """

    states: dict[int, Open]
    unmet: tuple[int, ...] = ()
    clashes: tuple[tuple[str, str], ...] = ()


def allows(given: Open, states: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether states are as given, on some of the axes."""
    return all(states[a] in held for a in axes if (held := given[a]) is not None)


def constraint_of(graph: Graph, value: int) -> Op | None:
    """The constraint whose result a pinned value is."""
    producer = graph.values[value].producer
    op = graph.ops[producer] if producer >= 0 else None
    return op if op is not None and op.name in CONSTRAINTS else None


def deciding(problem: Problem) -> dict[int, int]:
    """The node of each constraint, which is an op with a decision of its own."""
    return {
        node.ops[0]: node.index
        for node in problem.nodes
        if node.kind == "op" and problem.graph.ops[node.ops[0]].name in CONSTRAINTS
    }


def settled(
    problem: Problem, quotient: Quotient, sizes: Sequence[int], names: Sequence[str], given: Mapping[int, Open]
) -> dict[int, Open]:
    """What the layouts of all values leave to the decisions that have none given: what propagation has settled.

    An operation is split over an axis along the factors that its operands and results have on it, and over no other; a
    value that nothing lays out is whole. What one constraint alone reads may lie as its operation leaves it or as the
    constraint has it, for partial sums go there in one step. What cannot be said in states is open: a dimension that
    several axes split along factors of a reshape.

    Args:
      given: the states that classes have, as of `pinned_states` of a graph in which all layouts are pins.
    """
    graph, found = problem.graph, dict(given)
    readers = graph.users()
    for node in problem.nodes:
        k = quotient.klass[node.index]
        if k in found:
            continue
        states: list[set[int]] = [set() for _ in names]
        if node.kind == "op":
            for axis, f in _factors(graph, graph.ops[node.ops[0]], names):
                states[axis].update({node.factors.index(f) + 1} if f in node.factors else ())
        for v in node.members:
            if v not in graph.pins and len(by := readers[v]) == 1 and graph.ops[by[0]].name in CONSTRAINTS:
                for axis, d in _passes(graph, v, graph.ops[by[0]], names):
                    states[axis].update({problem.classes[v][d] + 1} - {0})
        found[k] = tuple(frozenset(held or {0}) for held in states)
    nodes = [problem.nodes[n] for n in quotient.nodes]
    return {k: held if _can_be(nodes[k], held, sizes) else (None,) * len(names) for k, held in found.items()}


def _can_be(node: Node, held: Open, sizes: Sequence[int]) -> bool:
    """Whether a decision can have the states that are fixed, on all axes at once."""
    fixed = [next(iter(states)) if states is not None and len(states) == 1 else 0 for states in held]
    return all(
        node.takes(s, [n for of, n in zip(fixed, sizes, strict=True) if of == s and n > 1])
        for s in dict.fromkeys(fixed)
        if s > 0
    )


def _factors(graph: Graph, op: Op, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(axis, factor) pairs: the factors of an operation's rule that the layouts of its values have on axes."""
    if op.rule is None:
        return
    for v, mapping in zip((*op.operands, *op.results), (*op.rule.operands, *op.rule.results), strict=False):
        dims = graph.pins[v][1] if v in graph.pins else ()
        for axes, factors in zip(dims, mapping, strict=False):
            yield from ((names.index(axis), leading(op.rule, factors)) for axis in axes if axis in names)


def _passes(graph: Graph, v: int, constraint: Op, names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """(axis, dimension) pairs of a value on its way from the operation that makes it to a constraint."""
    for d, axes in enumerate(graph.pins[constraint.results[0]][1]):
        yield from ((names.index(axis), d) for axis in axes if axis in names)
    producer = graph.values[v].producer
    op = graph.ops[producer] if producer >= 0 else None
    if op is not None and op.rule is not None and v in op.results:
        mapping = op.rule.results[op.results.index(v)]
        on = {leading(op.rule, factors): d for d, factors in enumerate(mapping)}
        yield from ((axis, on[f]) for axis, f in _factors(graph, op, names) if f in on)


def pinned_states(
    problem: Problem, quotient: Quotient, sizes: Sequence[int], names: Sequence[str], strict: bool = True
) -> Pinned:
    """What given shardings leave to each class.

    Those of arguments, results and operations hold for all that is combined with them element by element. A constraint
    holds where it stands; what is computed from it keeps its layout unless something else was given there.

    Args:
      strict: whether it is an error if two disagree on what is combined; else the first holds.

    Raises:
      RhinoError: a sharding names an unknown axis or cannot be expressed, or two arguments of one cone disagree.
    """
    graph = problem.graph
    clashes: list[tuple[str, str]] = []
    found: dict[int, tuple[Open, str]] = {}
    soft: list[int] = []
    for v, (name, dims) in graph.pins.items():
        for axis in (axis for axes in dims for axis in axes):
            if axis not in names:
                raise RhinoError(
                    f"{name} is sharded over axis '{axis}' but the mesh has {', '.join(names)}",
                    "use the axes of the mesh",
                )
        if constraint_of(graph, v) is not None:
            soft.append(v)
            continue
        if problem.node_of[v] < 0:
            continue
        classes = problem.classes[v]
        for d, axes in enumerate(dims):
            if axes and classes[d] < 0 and strict:
                raise RhinoError(
                    f"{name}: dim {d} of size {graph.values[v].shape[d]} cannot be sharded over '{axes[0]}'",
                    "shard another dimension",
                )
        k = quotient.klass[problem.node_of[v]]
        given = _open([c + 1 for c in classes], dims, graph.loose.get(v), names)
        known = found.get(k)
        if known is not None and known[0] != given and not strict:
            clashes.append((known[1], name))
            continue
        if known is not None and known[0] != given:
            raise RhinoError(
                f"{known[1]} and {name} have different shardings but are combined element by element",
                "give both the same sharding",
            )
        found[k] = (given, name)
    unmet = _constraints(problem, quotient, sizes, names, soft, found)
    return Pinned({k: given for k, (given, _) in found.items()}, unmet, tuple(clashes))


def _constraints(
    problem: Problem,
    quotient: Quotient,
    sizes: Sequence[int],
    names: Sequence[str],
    values: Sequence[int],
    found: dict[int, tuple[Open, str]],
) -> tuple[int, ...]:
    """Adds what constraints fix; returns those that nothing can keep."""
    graph, nodes = problem.graph, deciding(problem)
    unmet = []
    for v in values:
        name, dims = graph.pins[v]
        op = constraint_of(graph, v)
        assert op is not None
        node = problem.nodes[nodes[op.index]]
        states = [0] * len(dims)
        if op.rule is not None:
            factors = [leading(op.rule, dim) for dim in op.rule.results[0]]
            states = [node.factors.index(f) + 1 if f in node.factors else 0 for f in factors]
        if not _divides(states, dims, node, sizes, names):
            unmet.append(v)
            continue
        found[quotient.klass[node.index]] = (_open(states, dims, graph.loose.get(v), names), name)
        if problem.node_of[v] < 0:
            continue
        cone = problem.nodes[problem.node_of[v]]
        states = [c + 1 for c in problem.classes[v]]
        if _divides(states, dims, cone, sizes, names):
            given = _open(states, dims, graph.loose.get(v), names)
            found.setdefault(quotient.klass[cone.index], (given, name))
    return tuple(unmet)


def _open(states: Sequence[int], dims: Dims, loose: Loose | None, names: Sequence[str]) -> Open:
    """Per axis, the states that a sharding leaves it; `states` are those of the dimensions, 0 for one that has none."""
    placed = {axis: d for d, axes in enumerate(dims) for axis in axes}
    further = frozenset({0, *(s for s, is_open in zip(states, loose.dims, strict=True) if is_open)}) if loose else None

    def of(axis: str) -> frozenset[int] | None:
        if axis in placed:
            return frozenset({states[placed[axis]]})
        if loose is None or axis in loose.whole:
            return frozenset({0})
        return further if axis in loose.axes else None

    return tuple(map(of, names))


def _divides(states: Sequence[int], dims: Dims, node: Node, sizes: Sequence[int], names: Sequence[str]) -> bool:
    size: Mapping[str, int] = dict(zip(names, sizes, strict=True))
    return all(
        not axes or (s > 0 and node.takes(s, [size[axis] for axis in axes if size[axis] > 1]))
        for s, axes in zip(states, dims, strict=True)
    )
