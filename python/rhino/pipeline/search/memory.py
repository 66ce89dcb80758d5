"""Peak bytes of one device of each stage of a pipeline: the liveness sweep of `rhino.program.memory`, stage by stage.

Owns which buffers a stage holds (docs/design/pipelines.md, "Memory"): its arguments and accumulators, what its forward
saves for its backward once per micro-batch in flight, values received, and the rest while it runs. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.pipeline.cut.pieces import boundary
from rhino.pipeline.program.stage_memory import StageMemory
from rhino.pipeline.search.fragment_lives import FragmentLives, Span, Staging
from rhino.program.data import Graph
from rhino.program.memory import Lifetimes, LiveBytes


def stage_memory(
    graph: Graph, staging: Staging, life: Lifetimes, local: Sequence[int], copies: Sequence[Span]
) -> list[StageMemory]:
    """The memory of every stage.

    Args:
      local, copies: bytes of each value on one device of its stage, and the converted copies that ops read, as
        `rhino.sharding.kept.spans` gives them.
    """
    first, last = staging.loop, graph.ops[staging.loop].region_end - 1
    stages = staging.stages
    where = _homes(graph, staging)
    arguments = [0] * stages
    for v, home in staging.arguments:
        for s in range(stages) if home < 0 else (home,):
            arguments[s] += local[v]
    kept = [0] * stages
    outside = [LiveBytes() for _ in range(stages)]
    # Rows of an argument, and those of the result that takes its buffer, are the argument's.
    owned = _boundary_values(graph, [v for v, _ in staging.arguments])
    held = [(where.get(v, -1), local[v], born, dies) for v, born, dies in life.intervals if v not in owned]
    held += [(staging.stage_of[born], nbytes, born, dies) for _, nbytes, born, dies in copies]
    for s, nbytes, born, dies in [*held, *_received(graph, staging, local, where)]:
        if s < 0 or not nbytes:
            continue
        if born <= first and dies >= last:
            kept[s] += nbytes
        if born <= first or dies > last:
            outside[s].add(nbytes, born, dies)
    for v, s in staging.sums:
        nbytes = local[v] or graph.values[v].nbytes
        kept[s] += nbytes
        outside[s].add(nbytes, first, last)
    parts = FragmentLives(graph, staging, local, copies, owned)
    return [
        StageMemory(
            arguments[s],
            kept[s],
            parts.saved_bytes(s),
            parts.running_bytes(s),
            outside[s].highest(lambda op: not first <= op <= last)[0],
        )
        for s in range(stages)
    ]


def _boundary_values(graph: Graph, arguments: Sequence[int]) -> frozenset[int]:
    found = set(arguments)
    for o in boundary(graph):
        found.update(graph.ops[o].operands)
        found.update(graph.ops[o].results)
    return frozenset(found)


def _homes(graph: Graph, staging: Staging) -> dict[int, int]:
    """The stage of each value. What a loop carries is where the loop is, or where what it carries on is made."""
    found: dict[int, int] = {}
    for op in graph.ops:
        for tie in op.ties:
            s = staging.stage_of[op.index]
            if op.index == staging.loop:
                maker = graph.values[tie[3]].producer
                s = staging.stage_of[maker] if maker >= 0 else -1
            # Every stage makes the zeros that its inner loops start with for itself, each time.
            for v in tie if op.index == staging.loop else tie[1:]:
                found.setdefault(v, s)
    for op in graph.ops:
        for v in op.results:
            found.setdefault(v, staging.stage_of[op.index])
    return found


def _received(graph: Graph, staging: Staging, local: Sequence[int], where: dict[int, int]) -> list[Span]:
    """Copies of values that another stage made, as (stage, bytes, first reader there, last reader)."""
    ends: dict[tuple[int, int], list[int]] = {}
    for op in graph.ops:
        s = staging.stage_of[op.index]
        if s < 0:
            continue
        for v in op.operands:
            home = where.get(v, -1)
            if home >= 0 and home != s:
                ends.setdefault((s, v), []).append(op.index)
    return [(s, local[v], min(ops), max(ops)) for (s, v), ops in sorted(ends.items())]
