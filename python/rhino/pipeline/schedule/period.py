"""The time per micro-batch that warm-up counts sustain: the largest ratio over the cycles that tasks make.

Owns the graph of recurring dependencies (a backward follows the stage's forward of `warmup - 1` micro-batches later)
and its maximum cycle ratio. Links are taken as free when wanted: the simulator lets them be shared.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.pipeline.schedule.costs import PipelineCosts

_TOLERANCE = 1e-12


def steady_period_s(costs: PipelineCosts, warmup: Sequence[int], delay_weight: bool = False) -> float:
    """Seconds per micro-batch in steady state when stage s alternates after warmup[s] forwards; 1F1B is n, ..., 2, 1.

    Exact for any graph of stages and any costs, with a link in each direction of every edge. Node 2s is the start of a
    forward of stage s, 2s + 1 of a backward; an edge (u, v, seconds, t) says that v of micro-batch i + t starts at
    least `seconds` after u of micro-batch i. Around a cycle of seconds W and T micro-batches, the period is at least
    W / T, and the largest such ratio is what the pipeline settles at.
    """
    split = costs.splittable() if delay_weight else ()
    sent_s = [b - (costs.weight_s[s] if s in split else 0.0) for s, b in enumerate(costs.backward_s)]
    edges: list[tuple[int, int, float, int]] = []
    for s in range(costs.stages):
        edges.append((2 * s, 2 * s + 1, costs.forward_s[s], 1 - warmup[s]))
        edges.append((2 * s + 1, 2 * s, costs.backward_s[s], warmup[s]))
    for edge in costs.edges:
        if edge.forward_s is not None:
            edges.append((2 * edge.src, 2 * edge.dst, costs.forward_s[edge.src] + edge.forward_s, 0))
        if edge.backward_s is not None:
            edges.append((2 * edge.dst + 1, 2 * edge.src + 1, sent_s[edge.dst] + edge.backward_s, 0))
    ratio = max(f + b for f, b in zip(costs.forward_s, costs.backward_s, strict=True))
    while True:
        better = _better_ratio(2 * costs.stages, edges, ratio)
        if better is None:
            return ratio
        ratio = better


def _better_ratio(nodes: int, edges: Sequence[tuple[int, int, float, int]], ratio: float) -> float | None:
    """The ratio of a cycle that exceeds `ratio`, found as a positive cycle by Bellman and Ford; None without one."""
    scale = max(sum(abs(w) for _, _, w, _ in edges), ratio)
    distance = [0.0] * nodes
    via: list[int] = [-1] * nodes
    changed = -1
    for _ in range(nodes):
        changed = -1
        for index, (u, v, weight, tokens) in enumerate(edges):
            reached = distance[u] + weight - ratio * tokens
            if reached > distance[v] + _TOLERANCE * scale:
                distance[v], via[v], changed = reached, index, v
        if changed < 0:
            return None
    node = changed
    for _ in range(nodes):  # far enough back to be on the cycle
        node = edges[via[node]][0]
    total, count, at = 0.0, 0, node
    while True:
        u, _, weight, tokens = edges[via[at]]
        total, count, at = total + weight, count + tokens, u
        if at == node:
            break
    better = total / count if count > 0 else None
    return better if better is not None and better > ratio else None
