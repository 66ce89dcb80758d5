"""What an engineer reads off a program before laying it out: what each parameter does, and which state belongs to it.

Owns the facts that expert rules are written over; everything comes from dataflow, names only break ties. Reads the
search's own decomposition, so that a rule asks for no layout the solver cannot express. Decides nothing; knows no mesh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rhino.program.data import Argument, Graph, Op, Value
from rhino.program.disjoint import DisjointSets
from rhino.program.operations import CONTRACTIONS
from rhino.sharding.cones import build_problem
from rhino.sharding.problem import Problem, leading


@dataclass(frozen=True, slots=True)
class Use:
    """The first operation that contracts or looks up a parameter, in terms of the parameter's own dimensions.

    Attributes:
      kind: "dot", "convolution" or "gather".
      contracted: dims summed over.
      outputs: dims that the result has, in the order of the result.
      shared: dims that the other operand and the result have too: one weight per expert, per group, ...
      indexed: dims that indices select from (gather).
    """

    op: int
    slot: int
    kind: str
    contracted: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    indexed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramLeaf:
    """One argument of the step. `stacked` are dims that loops slice, one layer at a time; never worth splitting.

    `owner` is, for optimizer state, the index of the parameter it belongs to, or -1.
    """

    index: int
    value: int
    name: str
    role: str
    shape: tuple[int, ...]
    nbytes: int
    stacked: tuple[int, ...] = ()
    use: Use | None = None
    owner: int = -1


@dataclass
class ProgramFacts:
    """A program as experts see it. `leaves` are its arguments in order."""

    graph: Graph
    problem: Problem = field(repr=False)
    leaves: tuple[ProgramLeaf, ...] = field(repr=False)

    @property
    def params(self) -> tuple[ProgramLeaf, ...]:
        """Parameters."""
        return tuple(leaf for leaf in self.leaves if leaf.role == "param")

    @property
    def state(self) -> tuple[ProgramLeaf, ...]:
        """Optimizer state, running statistics included."""
        return tuple(leaf for leaf in self.leaves if leaf.role == "opt_state")

    @cached_property
    def batch(self) -> tuple[ProgramLeaf, ...]:
        """Arguments whose leading dimension is the batch: those of role batch with the commonest leading size."""
        found = [leaf for leaf in self.leaves if leaf.role == "batch" and leaf.shape]
        sizes = [leaf.shape[0] for leaf in found]
        common = max(dict.fromkeys(sizes), key=sizes.count, default=0)
        return tuple(leaf for leaf in found if leaf.shape[0] == common)

    def parts(self, value: int, dim: int, among: int) -> bool:
        """Whether the search can split a dimension of a value `among` ways."""
        problem = self.problem
        if problem.node_of[value] < 0:
            return False
        c = problem.classes[value][dim]
        return c >= 0 and problem.nodes[problem.node_of[value]].limits[c] % among == 0

    def dim_of(self, value: int, like: int, dim: int) -> int:
        """The dimension of `value` that is sharded when dimension `dim` of `like`, in the same cone, is; or -1."""
        problem = self.problem
        if problem.node_of[value] < 0 or problem.node_of[value] != problem.node_of[like]:
            return -1
        c = problem.classes[like][dim]
        return problem.classes[value].index(c) if c >= 0 and c in problem.classes[value] else -1


def read(graph: Graph) -> ProgramFacts:
    """The facts of a program whose arguments have roles, in time linear in its operations."""
    problem = build_problem(graph)
    stacked = _stacked(graph, problem)
    uses = _uses(graph, problem)
    owners = _owners(graph)
    leaves = []
    for i, argument in enumerate(graph.arguments):
        value = graph.values[argument.value]
        leaves.append(
            ProgramLeaf(
                index=i,
                value=value.index,
                name=argument.name,
                role=argument.role,
                shape=value.shape,
                nbytes=value.nbytes,
                stacked=stacked.get(i, ()),
                use=uses.get(i),
                owner=owners.get(i, -1),
            )
        )
    return ProgramFacts(graph, problem, tuple(leaves))


def cones_of_params(graph: Graph, problem: Problem) -> dict[int, list[Argument]]:
    """The parameters in each cone that has any."""
    found: dict[int, list[Argument]] = {}
    for argument in graph.arguments:
        n = problem.node_of[argument.value]
        if argument.role == "param" and n >= 0:
            found.setdefault(n, []).append(argument)
    return found


def _uses(graph: Graph, problem: Problem) -> dict[int, Use]:
    """The first heavy use of each parameter, by argument index."""
    cones = cones_of_params(graph, problem)
    index = {argument.value: i for i, argument in enumerate(graph.arguments)}
    fed = _fed(graph)
    found: dict[int, Use] = {}
    for op in graph.ops:
        if op.name not in CONTRACTIONS | {"stablehlo.gather"} or op.rule is None:
            continue
        kind = "dot" if op.name.startswith("stablehlo.dot") else op.name.removeprefix("stablehlo.")
        for slot, v in enumerate(op.operands):
            # Positions added to one example are in the cone of what they are added to.
            for argument in () if fed[v] else cones.get(problem.node_of[v], ()):
                i = index[argument.value]
                if i not in found and not (kind == "gather" and slot):
                    found[i] = _use(problem, op, slot, kind, argument.value)
    return found


def _fed(graph: Graph) -> list[bool]:
    """Per value, whether it is made of the batch."""
    fed = [False] * len(graph.values)
    for argument in graph.arguments:
        fed[argument.value] = argument.role == "batch"
    for op in graph.ops:
        any_fed = any(fed[v] for v in op.operands)
        for v in op.results:
            fed[v] = any_fed and not op.ties
        for tie in op.ties:
            for v in tie[1:3]:
                fed[v] = fed[tie[0]]
            if op.name == "stablehlo.while":
                fed[tie[-1]] = fed[tie[0]] or tie[2] != tie[3]
    return fed


def _use(problem: Problem, op: Op, slot: int, kind: str, argument: int) -> Use:
    rule = op.rule
    assert rule is not None
    v = op.operands[slot]
    others = {f for k, mapping in enumerate(rule.operands) if k != slot for dim in mapping for f in dim}
    order = [leading(rule, dim) for dim in rule.results[0]]
    parts: dict[str, list[tuple[int, int]]] = {"contracted": [], "outputs": [], "shared": [], "indexed": []}
    for d, mapping in enumerate(rule.operands[slot]):
        f = leading(rule, mapping)
        c = problem.classes[v][d]
        if f < 0 or c < 0 or c not in problem.classes[argument]:
            continue
        own = problem.classes[argument].index(c)
        if f in order:
            parts["shared" if f in others else "outputs"].append((order.index(f), own))
        elif f in rule.reduction:
            parts["indexed" if kind == "gather" else "contracted"].append((d, own))
    dims = {name: tuple(own for _, own in sorted(found)) for name, found in parts.items()}
    return Use(op.index, slot, kind, **dims)


def _stacked(graph: Graph, problem: Problem) -> dict[int, tuple[int, ...]]:
    """The dims of parameters that a loop slices: `dynamic_slice` of size one along them, inside a `while`."""
    sliced: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for op in graph.ops:
        if op.name == "stablehlo.dynamic_slice" and op.trips > 1:
            whole, part = graph.values[op.operands[0]], graph.values[op.results[0]]
            n = problem.node_of[whole.index]
            for d, (size, taken) in enumerate(zip(whole.shape, part.shape, strict=True)):
                if taken < size and n >= 0:
                    sliced.setdefault(n, []).append((whole.shape, d))
    found: dict[int, tuple[int, ...]] = {}
    for i, argument in enumerate(graph.arguments):
        value = graph.values[argument.value]
        dims = [d for shape, d in sliced.get(problem.node_of[value.index], ()) if shape == value.shape]
        if dims:
            found[i] = tuple(dict.fromkeys(dims))
    return found


def _owners(graph: Graph) -> dict[int, int]:
    """The parameter of each optimizer state: the one it meets, element by element, in the update.

    Where several parameters do (they are added up somewhere) or none does, the name decides: the longest common end
    among parameters of the same shape.
    """
    groups = _elementwise_groups(graph)
    params = [i for i, argument in enumerate(graph.arguments) if argument.role == "param"]
    by_group: dict[int, list[int]] = {}
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i in params:
        v = graph.arguments[i].value
        by_group.setdefault(groups[v], []).append(i)
        by_shape.setdefault(graph.values[v].shape, []).append(i)
    found: dict[int, int] = {}
    for i, argument in enumerate(graph.arguments):
        value = graph.values[argument.value]
        if argument.role != "opt_state" or not value.shape:
            continue
        met = [p for p in by_group.get(groups[value.index], ()) if _shape(graph, p) == value.shape]
        if len(met) == 1:
            found[i] = met[0]
            continue
        keys = path(argument.name)
        named = [(common_end(keys, path(graph.arguments[p].name)), -p) for p in met or by_shape.get(value.shape, [])]
        length, which = max(named, default=(0, 0))
        if length:
            found[i] = -which
    return found


def _shape(graph: Graph, argument: int) -> tuple[int, ...]:
    return graph.values[graph.arguments[argument].value].shape


def path(name: str) -> list[str]:
    """The keys of an argument's name: "state.params['h']['kernel']" gives state, params, 'h', 'kernel'."""
    return re.findall(r"[^.\[\]]+", name)


def common_end(a: Sequence[str], b: Sequence[str]) -> int:
    """How many of the last keys are the same."""
    count = 0
    for x, y in zip(reversed(a), reversed(b), strict=False):
        if x != y:
            break
        count += 1
    return count


def _elementwise_groups(graph: Graph) -> list[int]:
    """A number per value, equal for values joined by operations whose tensors all have one shape and layout."""
    sets = DisjointSets(len(graph.values))

    def same(a: Value, b: Value) -> bool:
        return a.shape == b.shape and bool(a.shape)

    for op in graph.ops:
        pairs: list[tuple[int, int]] = []
        if op.rule is not None and len(op.results) == 1:
            result = op.rule.results[0]
            pairs = [(v, op.results[0]) for v, m in zip(op.operands, op.rule.operands, strict=True) if m == result]
        for tie in op.ties:
            pairs.extend((v, tie[0]) for v in tie[1:])
        for v, w in pairs:
            if same(graph.values[v], graph.values[w]):
                sets.join(v, w)
    return [sets.find(v) for v in range(len(graph.values))]
