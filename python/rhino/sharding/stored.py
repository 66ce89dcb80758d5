"""What a device stores of the program's arguments, by class and states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod

from rhino.sharding.problem import Problem
from rhino.sharding.symmetry import Quotient


class StoredArguments:
    """Bytes of arguments on one device of a mesh of `sizes`, each counted where its cone is."""

    def __init__(self, problem: Problem, quotient: Quotient, sizes: Sequence[int]) -> None:
        self._problem, self._quotient, self._sizes = problem, quotient, tuple(sizes)
        graph = problem.graph
        self._total = max(1, sum(graph.values[a.value].nbytes for a in graph.arguments))
        self._of: dict[int, list[int]] = defaultdict(list)
        for index, argument in enumerate(graph.arguments):
            self._of[problem.node_of[argument.value]].append(index)
        self._shares: dict[tuple[int, tuple[int, ...]], float] = {}

    def share(self, k: int, states: tuple[int, ...]) -> float:
        """What one member of class k has a device store, as a share of the bytes of all arguments."""
        found = self._shares.get((k, states))
        if found is None:
            held = self._in(k)
            found = sum([self._bytes(a, states) / self._total for a in held]) if held else 0.0
            self._shares[k, states] = found
        return found

    def batch_bytes(self, k: int, states: tuple[int, ...]) -> float:
        """Bytes of the batch that one member of class k has a device store, over what an equal part for each is."""
        graph, devices = self._problem.graph, prod(self._sizes)
        batch = [a for a in self._in(k) if graph.arguments[a].role == "batch"]
        return sum(self._bytes(a, states) - graph.values[graph.arguments[a].value].nbytes / devices for a in batch)

    def _in(self, k: int) -> Sequence[int]:
        return self._of.get(self._quotient.nodes[k], ())

    def _bytes(self, argument: int, states: tuple[int, ...]) -> float:
        problem = self._problem
        v = problem.graph.arguments[argument].value
        node = problem.nodes[problem.node_of[v]]
        return problem.graph.values[v].nbytes / node.parts(states, self._sizes, problem.classes[v])
