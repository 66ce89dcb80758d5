"""What a device takes to make values that any layout suits and that lie in memory: zeros that a scatter adds to, say.

Owns who makes them, and how much of them: the first op that reads one, as it reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rhino.sharding.problem import End, Problem
from rhino.sharding.symmetry import Quotient

# The end that reads it, the value, seconds that its parts divide, and those that nothing does.
Filled = tuple[End, int, float, float]


def filled(
    problem: Problem, quotient: Quotient, seconds: Sequence[float], launches: Sequence[float]
) -> dict[int, tuple[Filled, ...]]:
    """Per class, what one of its members makes, in the mean of all of them.

    Args:
      seconds, launches: of each op (`rhino.sharding.time_model`).
    """
    graph, owned = problem.graph, {o for node in problem.nodes for o in node.ops}
    by_node: dict[int, list[Filled]] = defaultdict(list)
    for op in graph.ops:
        work, launch = seconds[op.index], launches[op.index]
        ends = problem.free_reads.get(op.results[0]) if op.results and op.index not in owned else None
        if ends and work + launch > 0:
            by_node[ends[0].node].append((ends[0], op.results[0], work, launch))
    members: dict[int, list[list[Filled]]] = defaultdict(list)
    for n, made in by_node.items():
        members[quotient.klass[n]].append(made)
    found = {}
    for k, each in members.items():
        most = max(each, key=len)
        share = sum(map(_all_seconds, each)) / (quotient.counts[k] * _all_seconds(most))
        found[k] = tuple((end, v, share * work, share * launch) for end, v, work, launch in most)
    return found


def _all_seconds(made: Sequence[Filled]) -> float:
    return sum(work + launch for _, _, work, launch in made)
