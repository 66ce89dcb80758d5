"""A plan carried over to a program that was rewritten since: what is still there is laid out as it was.

Owns that translation, of decisions between two programs. Nothing is searched; knows no MLIR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rhino.machine import Cluster
from rhino.program.data import Graph
from rhino.sharding.costs import States
from rhino.sharding.estimate import costs_on
from rhino.sharding.problem import Problem
from rhino.sharding.replay import tied
from rhino.sharding.solution import Solution


def carry(solution: Solution, problem: Problem, ops: Mapping[int, int], cluster: Cluster) -> Solution:
    """The plan for a rewritten program.

    New operations must be element-wise: their operands and results are then laid out like what they are made of.

    Args:
      problem: of the rewritten program.
      ops: by number there, the number of the same operation in the planned program.
      cluster: that the plan is for.

    Returns: a solution with the prediction of the plan, which the rewriting does not change.
    """
    states = _states(solution, problem, ops)
    quotient, chosen = tied(problem, states)
    costs = costs_on(problem, quotient, cluster, solution.mesh)
    return replace(solution, problem=problem, costs=costs, states=chosen)


def _states(solution: Solution, problem: Problem, ops: Mapping[int, int]) -> list[States]:
    old, klass = solution.problem, solution.costs.quotient.klass
    found = [[0] * len(solution.mesh) for _ in problem.nodes]
    for v, u in _values(problem.graph, old.graph, ops).items():
        n, m = problem.node_of[v], old.node_of[u]
        if n < 0 or m < 0:
            continue
        view = old.view(u)
        for a, s in enumerate(solution.states[klass[m]]):
            if view[s] >= 0:
                state = problem.classes[v][view[s]] + 1
                assert state and found[n][a] in (0, state), "values that are combined were laid out alike"
                found[n][a] = state
    for node in problem.nodes:
        if node.kind == "op" and node.ops[0] in ops:
            before = old.nodes[solution.op_nodes[ops[node.ops[0]]]]
            assert before.factors == node.factors, "an operation has the factors that it had"
            found[node.index] = list(solution.states[klass[before.index]])
    return [tuple(s) for s in found]


def _values(graph: Graph, old: Graph, ops: Mapping[int, int]) -> dict[int, int]:
    """By value, the one of the old program that it is; what loops carry besides is new."""
    found = {new.value: was.value for new, was in zip(graph.arguments, old.arguments, strict=True)}
    for index, before in ops.items():
        op, was = graph.ops[index], old.ops[before]
        found.update(zip(op.results, was.results, strict=False))
        if op.name == "stablehlo.while":
            for tie, former in zip(op.ties, was.ties, strict=False):
                found.update(zip(tie[1:3], former[1:3], strict=True))
    return found
