"""The stages of the units: every cut of the graph where it has few ideals, an integer program where it has many.

Owns which method runs, its warm start, the proof it leaves, and the message when nothing fits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from rhino.errors import NoPlan, NothingFits, NotPipelined
from rhino.pipeline.cut.cuts import all_ideals, best_cut, prefixes
from rhino.pipeline.cut.integer import solve_integer
from rhino.pipeline.cut.problem import (
    Evaluation,
    StageOptions,
    StageProblem,
    StageSolution,
    allowed,
    evaluate,
)

_DEFAULT = StageOptions()


def plan_stages(problem: StageProblem, options: StageOptions = _DEFAULT) -> StageSolution:
    """The stages of least objective, every stage with a unit. Deterministic unless a budget ends the search.

    Raises:
      NoPlan: there are more stages than units, pins leave a stage none, or nothing is within the memory and balance
        limits.
    """
    begin = time.perf_counter()
    _check(problem)
    known = best_linear_cut(problem, _program_order(problem), options)
    ideals = all_ideals(problem, options.ideals)
    found = _by_ideals(problem, options, ideals, known) if ideals is not None else None
    better = found is None or (found.status != "optimal" and found.gap > options.worth)
    if better and options.time_limit_s > 0:
        found = _by_program(problem, options, found or known)
    found = found or known
    if found is None:
        raise _too_large(problem, options)
    return replace(found, seconds=time.perf_counter() - begin)


def best_linear_cut(
    problem: StageProblem, order: Sequence[int], options: StageOptions = _DEFAULT
) -> StageSolution | None:
    """The best cut of one topological order of the units into stages; None if no cut of it is allowed."""
    begin = time.perf_counter()
    _check(problem)
    cut = best_cut(problem, options, prefixes(order))
    if cut.stages is None:
        return None
    evaluation = evaluate(problem, options, cut.stages)
    status = "optimal" if evaluation.objective_s <= cut.bound_s * (1 + options.gap) else "limit"
    return StageSolution(status, cut.stages, evaluation, cut.bound_s, "order", time.perf_counter() - begin)


def _program_order(problem: StageProblem) -> list[int]:
    """The units as they are numbered, but for pins: what has to be on earlier stages first, so that it can be cut."""
    return sorted(range(len(problem.units)), key=lambda u: problem.ranges[u])


def _check(problem: StageProblem) -> None:
    if problem.stages > len(problem.units):
        raise NotPipelined(
            f"{problem.stages} stages, but the step can be divided into {len(problem.units)} units at most",
            f"plan for {len(problem.units)} stages or fewer",
        )


def _by_ideals(
    problem: StageProblem, options: StageOptions, ideals: Sequence[int], known: StageSolution | None
) -> StageSolution | None:
    """The best cut of all; only what could beat the known one is looked at."""
    cut = best_cut(problem, options, ideals, known.objective_s if known is not None else float("inf"))
    if cut.stages is None:
        return _settled(known, cut.bound_s, options) if known is not None else None
    evaluation = evaluate(problem, options, cut.stages)
    best = StageSolution("limit", cut.stages, evaluation, 0.0, "ideals")
    if known is not None and known.objective_s <= evaluation.objective_s:
        best = known
    return _settled(best, cut.bound_s, options)


def _settled(best: StageSolution, bound_s: float, options: StageOptions) -> StageSolution:
    bound_s = min(bound_s, best.objective_s)
    status = "optimal" if best.objective_s <= bound_s * (1 + options.gap) else "limit"
    return replace(best, status=status, bound_s=bound_s, method="ideals")


def _by_program(problem: StageProblem, options: StageOptions, known: StageSolution | None) -> StageSolution | None:
    start: tuple[Sequence[int], Evaluation] | None = None
    if known is not None:
        start = known.stage_of_unit, known.evaluation
    answer = solve_integer(problem, options, start)
    total = sum(u.forward_s + u.backward_s for u in problem.units)
    floor = total / max(problem.speeds) + (problem.microbatches - 1) * total / sum(problem.speeds)
    bound = max(answer.bound_s, floor)
    if answer.stages is not None:
        evaluation = evaluate(problem, options, answer.stages)
        better = known is None or evaluation.objective_s < known.objective_s
        if better and allowed(problem, options, evaluation):
            known = StageSolution("limit", answer.stages, evaluation, bound, "integer")
    if known is None:
        return None
    bound = min(max(bound, known.bound_s if known.method != "order" else 0.0), known.objective_s)
    proved = known.objective_s <= bound * (1 + 2 * options.gap)
    return replace(known, status="optimal" if proved else "limit", bound_s=bound, method="integer")


def _too_large(problem: StageProblem, options: StageOptions) -> NoPlan:
    """Says which stage is too large in the best cut without limits."""
    free, plain = replace(problem, memory_limits=()), StageOptions(options.exposure)
    best = best_linear_cut(free, _program_order(free), plain)
    if best is None and (free, plain) == (problem, options):
        return NotPipelined(
            f"pins leave nothing for some of {problem.stages} stages", "pin less, or plan as many stages as have pins"
        )
    if best is None:  # pins may leave no cut of this order, and one of another
        try:
            best = plan_stages(free, plain)
        except NoPlan as error:
            return error
    memory, limits = best.evaluation.memory_bytes, problem.memory_limits
    over = [(used / limit, s) for s, (used, limit) in enumerate(zip(memory, limits, strict=True)) if limit]
    if over and max(over)[0] > 1:
        s = max(over)[1]
        return NothingFits(
            f"no {problem.stages} stages fit in memory: stage {s} would need {memory[s]} bytes of {limits[s]}",
            "plan more stages, more devices per stage, or a schedule with fewer micro-batches in flight",
        )
    return NotPipelined(
        f"no {problem.stages} stages are within {options.balance:g} of their mean time and within the memory limit",
        "raise balance, or leave it out",
    )
