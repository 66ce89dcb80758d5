"""Random stage problems, and the best of every choice of stages there is."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from math import inf

from rhino.pipeline.cut import Net, StageOptions, StageProblem, StageUnit
from rhino.pipeline.cut.problem import evaluate, fits, slowest_allowed
from rhino.pipeline.schedule import warmup_counts

Matrix = tuple[tuple[float, ...], ...]


def random_problem(seed: int, units: int, stages: int, uniform: bool = True, tight: bool = False) -> StageProblem:
    """Units on a random graph with mirrored backward nets and shared parameters, on uneven stages."""
    r = random.Random(seed)
    found = tuple(StageUnit(r.uniform(1, 5), r.uniform(1, 9), r.randint(0, 50), r.randint(0, 20)) for _ in range(units))
    edges = tuple((u, v) for u in range(units) for v in range(u + 1, units) if r.random() < 0.35)
    nets = []
    for u in range(units):
        readers = tuple(v for a, v in edges if a == u)
        if readers:
            # Values of the same units: they travel together.
            nets += [Net(u, readers, r.randint(1, 10), count=r.randint(1, 3)) for _ in range(r.randint(1, 2))]
            nets += [Net(v, (u,), r.randint(1, 10), "backward") for v in readers]
    nets.append(Net(0, (1, units - 1), r.randint(1, 30), "shared"))
    nets.append(Net(units // 2, (0, units - 2, units - 1), r.randint(1, 30), "shared"))

    def links(low: float) -> Matrix:
        return tuple(
            tuple(0.0 if a == b else (low if uniform else low * r.choice([1, 2, 20])) for b in range(stages))
            for a in range(stages)
        )

    limits = (r.randint(150, 400),) * stages if tight else ()
    microbatches = r.choice([1, 2, 8])
    return StageProblem(
        found,
        edges,
        tuple(nets),
        stages,
        microbatches,
        in_flight=warmup_counts("1f1b", range(stages, 0, -1), microbatches),
        speeds=tuple(r.choice([1.0, 1.0, 2.0]) for _ in range(stages)),
        memory_limits=limits,
        byte_s=links(0.1),
        latency_s=links(0.05),
    )


def pinned_problem(seed: int, units: int, stages: int, uniform: bool = True, tight: bool = False) -> StageProblem:
    """A random problem with some units pinned to where one choice of stages has them."""
    problem = random_problem(seed, units, stages, uniform, tight)
    r = random.Random(seed + 1)
    ways = [
        way
        for way in product(range(stages), repeat=units)
        if len(set(way)) == stages and all(way[u] <= way[v] for u, v in problem.precedences)
    ]
    way, share = r.choice(ways), r.choice([0.2, 0.5, 1.0])
    return replace(problem, pins=tuple(s if r.random() < share else -1 for s in way))


def best_of_all(problem: StageProblem, options: StageOptions) -> float:
    """The least objective of every choice of stages; infinite if none is allowed."""
    best = inf
    for stages in product(range(problem.stages), repeat=len(problem.units)):
        if len(set(stages)) < problem.stages or any(stages[u] > stages[v] for u, v in problem.precedences):
            continue
        if any(pin not in (-1, s) for pin, s in zip(problem.pins, stages, strict=bool(problem.pins))):
            continue
        found = evaluate(problem, options, stages)
        if fits(problem, found.memory_bytes) and found.slowest_s <= slowest_allowed(problem, options):
            best = min(best, found.objective_s)
    return best
