"""Random stage problems, every choice of stages there is, and topological orders of units."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from itertools import product
from math import inf

from rhino.stages import Net, StageOptions, StageProblem, Unit
from rhino.stages.problem import evaluate, fits, slowest_allowed

Matrix = tuple[tuple[float, ...], ...]


def random_problem(seed: int, units: int, stages: int, uniform: bool = True, tight: bool = False) -> StageProblem:
    """Units on a random graph with mirrored backward nets and a shared parameter, on uneven stages."""
    r = random.Random(seed)
    found = tuple(Unit(r.uniform(1, 5), r.uniform(1, 9), r.randint(0, 50), r.randint(0, 20)) for _ in range(units))
    edges = tuple((u, v) for u in range(units) for v in range(u + 1, units) if r.random() < 0.35)
    nets = []
    for u in range(units):
        readers = tuple(v for a, v in edges if a == u)
        if readers:
            nets.append(Net(u, readers, r.randint(1, 10)))
            nets += [Net(v, (u,), r.randint(1, 10), "backward") for v in readers]
    nets.append(Net(0, (1, units - 1), r.randint(1, 30), "shared"))

    def links(low: float, high: float) -> Matrix:
        return tuple(
            tuple(0.0 if a == b else (low if uniform else r.uniform(low, high)) for b in range(stages))
            for a in range(stages)
        )

    limits = (r.randint(150, 400),) * stages if tight else ()
    return StageProblem(
        found,
        edges,
        tuple(nets),
        stages,
        r.choice([1, 2, 8]),
        speeds=tuple(r.choice([1.0, 1.0, 2.0]) for _ in range(stages)),
        memory_limits=limits,
        byte_s=links(0.1, 0.5),
        latency_s=links(0.05, 0.5),
    )


def best_of_all(problem: StageProblem, options: StageOptions) -> float:
    """The least objective of every choice of stages; infinite if none is allowed."""
    best = inf
    for stages in product(range(problem.stages), repeat=len(problem.units)):
        if len(set(stages)) < problem.stages or any(stages[u] > stages[v] for u, v in problem.precedences):
            continue
        found = evaluate(problem, options, stages)
        if fits(problem, found.memory_bytes) and found.slowest_s <= slowest_allowed(problem, options):
            best = min(best, found.objective_s)
    return best


def orders(problem: StageProblem, shuffles: int) -> Iterator[tuple[str, list[int]]]:
    """Topological orders of the units: as numbered, depth first, breadth first, and shuffled ones."""
    yield "program", list(range(len(problem.units)))
    yield "depth first", _order(problem, lambda ready: ready.pop())
    yield "breadth first", _order(problem, lambda ready: ready.popleft())
    for seed in range(shuffles):
        r = random.Random(seed)

        def some(ready: deque[int], r: random.Random = r) -> int:
            ready.rotate(r.randrange(len(ready)))
            return ready.popleft()

        yield f"shuffled {seed}", _order(problem, some)


def _order(problem: StageProblem, pick: object) -> list[int]:
    assert callable(pick)
    missing = [0] * len(problem.units)
    after: list[list[int]] = [[] for _ in problem.units]
    for u, v in problem.precedences:
        missing[v] += 1
        after[u].append(v)
    ready = deque(u for u, count in enumerate(missing) if not count)
    found: list[int] = []
    while ready:
        u = pick(ready)
        found.append(u)
        for v in after[u]:
            missing[v] -= 1
            if not missing[v]:
                ready.append(v)
    return found
