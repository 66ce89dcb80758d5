"""Shardings the user gave: the states they force on the decisions that hold those arguments.

Owns that translation and its errors. Knows nothing of how states are chosen otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.errors import RhinoError
from rhino.search.costs import States
from rhino.search.problem import Problem
from rhino.search.symmetry import Quotient


def pinned_states(
    problem: Problem, quotient: Quotient, sizes: Sequence[int], names: Sequence[str]
) -> dict[int, States]:
    """For each class with a pinned argument or output, its state per axis.

    Raises:
      RhinoError: a sharding names an unknown axis or cannot be expressed, or two arguments of one cone disagree.
    """
    pinned: dict[int, tuple[States, str]] = {}
    for v, (name, dims) in problem.graph.pins.items():
        if problem.node_of[v] < 0:
            continue
        states = [0] * len(sizes)
        classes = problem.classes[v]
        for d, axes in enumerate(dims):
            for axis in axes:
                if axis not in names:
                    raise RhinoError(
                        f"{name} is sharded over axis '{axis}' but the mesh has {', '.join(names)}",
                        "use the axes of the mesh",
                    )
                if classes[d] < 0:
                    raise RhinoError(
                        f"{name}: dim {d} of size {problem.graph.values[v].shape[d]} cannot be sharded over '{axis}'",
                        "shard another dimension",
                    )
                states[list(names).index(axis)] = classes[d] + 1
        k = quotient.klass[problem.node_of[v]]
        known = pinned.get(k)
        if known is not None and known[0] != tuple(states):
            raise RhinoError(
                f"{known[1]} and {name} have different shardings but are combined element by element",
                "give both the same sharding",
            )
        pinned[k] = (tuple(states), name)
    return {k: states for k, (states, _) in pinned.items()}
