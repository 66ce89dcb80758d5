"""The decisions behind layouts that are written in a program: what the search decided, read back.

Owns that inference, node by node; nothing is searched. Knows no MLIR, no mesh sizes and no costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rhino.errors import RhinoError
from rhino.program.data import Dims
from rhino.sharding.costs import States
from rhino.sharding.layout import Layout
from rhino.sharding.problem import PARTIAL, REPLICATED, Problem
from rhino.sharding.symmetry import Quotient, tie_repeats, untied


@dataclass(frozen=True, slots=True)
class Written:
    """Layouts that a program carries, as axes per dimension.

    Attributes:
      kept: of values, as arguments, results and all that reads them without more ado have them.
      made: of results, as their ops leave them, sums reduced.
      read: of operands, as (op, position), that are converted copies.
      returned: of results of the program, as it returns them.
    """

    kept: Mapping[int, Dims]
    made: Mapping[int, Dims]
    read: Mapping[tuple[int, int], Dims]
    returned: Sequence[tuple[int, Dims]] = ()


class UnreadableError(RhinoError):
    """Layouts that no decisions lead to: a program that was changed by hand, or by another tool."""


def replay(problem: Problem, names: Sequence[str], written: Written) -> tuple[Quotient, tuple[States, ...]]:
    """The decisions under which a program has the layouts that are written in it, tied where they agree.

    Args:
      problem: of the program without the conversions that are written.
      names: the mesh's axes.

    Raises:
      UnreadableError: there are none.
    """
    return tied(problem, _LayoutReader(problem, names, written).run())


def tied(problem: Problem, states: Sequence[States]) -> tuple[Quotient, tuple[States, ...]]:
    """The states of all decisions by class: of those that are alike, if they agree, else of each on its own."""
    for quotient in (tie_repeats(problem), untied(problem)):
        chosen = tuple(states[n] for n in quotient.nodes)
        if all(chosen[k] == own for k, own in zip(quotient.klass, states, strict=True)):
            return quotient, chosen
    raise AssertionError("decisions that are not tied differ from themselves")


class _LayoutReader:
    def __init__(self, problem: Problem, names: Sequence[str], written: Written) -> None:
        self.problem, self.names, self.written = problem, tuple(names), written
        self.states: list[list[int]] = [[0] * len(self.names) for _ in problem.nodes]

    def run(self) -> list[States]:
        problem = self.problem
        self._cones()
        found: list[States] = [tuple(s) for s in self.states]
        # What each op with a decision of its own sees of its operands and results.
        seen: dict[int, list[tuple[Sequence[int], Layout, bool]]] = {}
        for transfer in problem.transfers:
            for end in transfer.targets if transfer.kind == "use" else ():
                if problem.nodes[end.node].kind == "op":
                    dims = self.written.read.get((end.op, end.slot))
                    layout = self._kept(transfer.value, found) if dims is None else self._layout(dims)
                    seen.setdefault(end.node, []).append((end.view, layout, False))
            for end in transfer.sources if transfer.kind == "define" else ():
                if problem.nodes[end.node].kind == "op" and end.value in self.written.made:
                    layout = self._layout(self.written.made[end.value])
                    seen.setdefault(end.node, []).append((end.view, layout, True))
        for node in problem.nodes:
            if node.kind == "op":
                found[node.index] = tuple(
                    self._state(node.ops[0], node.states, seen.get(node.index, ()), a) for a in range(len(self.names))
                )
        return found

    def _cones(self) -> None:
        """Every axis that splits a value of a cone splits the cone so."""
        problem, written = self.problem, self.written
        for v, dims in written.kept.items():
            n = problem.node_of[v]
            for a, d in enumerate(self._layout(dims)) if n >= 0 else ():
                if d >= 0 and (problem.classes[v][d] < 0 or self.states[n][a] not in (0, problem.classes[v][d] + 1)):
                    raise self._unreadable(v)
                if d >= 0:
                    self.states[n][a] = problem.classes[v][d] + 1
        for v, dims in written.kept.items():
            if problem.node_of[v] >= 0 and self._kept(v, self.states) != self._layout(dims):
                raise self._unreadable(v)
        for v, dims in written.returned:
            u = problem.returned.get(v, v)
            if problem.node_of[u] >= 0 and self._kept(u, self.states) != self._layout(dims):
                raise self._unreadable(v)

    def _kept(self, v: int, states: Sequence[Sequence[int]]) -> Layout:
        view = self.problem.view(v)
        return tuple([view[s] for s in states[self.problem.node_of[v]]])

    def _layout(self, dims: Dims) -> Layout:
        placed = {axis: d for d, axes in enumerate(dims) for axis in axes}
        if not placed.keys() <= set(self.names):
            raise UnreadableError("a sharding names a part of an axis")
        return tuple([placed.get(axis, REPLICATED) for axis in self.names])

    def _state(self, op: int, states: int, seen: Sequence[tuple[Sequence[int], Layout, bool]], axis: int) -> int:
        """The state in which an op sees what is written; where it may also be a sum, it is none.

        What is a sum over other axes may be made sliced by this one, which the op's state does not say.
        """

        def agrees(view: Sequence[int], layout: Layout, made: bool, state: int) -> bool:
            return view[state] == layout[axis] or (made and view[state] == PARTIAL)

        fits = [s for s in range(states) if all(agrees(*one, s) for one in seen)]
        if not fits and all(agrees(*one, 0) for one in seen if not one[2]):
            fits = [0]
        if not fits:
            name = self.problem.graph.ops[op].name
            raise UnreadableError(f"{name}: axis '{self.names[axis]}' does not split its operands and results alike")
        return min(fits, key=lambda s: (any(view[s] == PARTIAL for view, _, _ in seen), s))

    def _unreadable(self, v: int) -> UnreadableError:
        shape = "x".join(map(str, self.problem.graph.values[v].shape))
        return UnreadableError(f"a value of {shape} is laid out otherwise than what it is combined with")
