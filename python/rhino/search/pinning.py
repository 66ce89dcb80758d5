"""Shardings the user gave: the states they force on the decisions that hold those arguments.

Owns that translation and its errors. Knows nothing of how states are chosen otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.errors import RhinoError
from rhino.search.costs import States
from rhino.search.problem import Problem
from rhino.search.symmetry import Quotient


def pinned_states(problem: Problem, quotient: Quotient, sizes: Sequence[int], names: Sequence[str]) -> dict[int, States]:
    """For each class with a pinned argument, its state per axis.

    Raises:
      RhinoError: a sharding names an unknown axis or cannot be expressed, or two arguments of one cone disagree.
    """
    pinned: dict[int, tuple[States, str]] = {}
    for argument in problem.graph.arguments:
        if argument.pinned is None or problem.node_of[argument.value] < 0:
            continue
        states = [0] * len(sizes)
        classes = problem.classes[argument.value]
        for d, axes in enumerate(argument.pinned):
            for axis in axes:
                if axis not in names:
                    raise RhinoError(
                        f"argument {argument.name} is sharded over axis '{axis}' but the mesh has {', '.join(names)}",
                        "use the axes of the mesh",
                    )
                if classes[d] < 0:
                    raise RhinoError(
                        f"argument {argument.name}: dim {d} of size {problem.graph.values[argument.value].shape[d]} "
                        f"cannot be sharded over '{axis}'",
                        "shard another dimension",
                    )
                states[list(names).index(axis)] = classes[d] + 1
        k = quotient.klass[problem.node_of[argument.value]]
        known = pinned.get(k)
        if known is not None and known[0] != tuple(states):
            raise RhinoError(
                f"arguments {known[1]} and {argument.name} have different shardings but are combined element by element",
                "give both the same sharding",
            )
        pinned[k] = (tuple(states), argument.name)
    return {k: states for k, (states, _) in pinned.items()}
