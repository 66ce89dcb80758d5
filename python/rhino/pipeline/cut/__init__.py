"""Stages of a pipeline over plain program data: phases of ops, units, the cut, and where the rest goes."""

from __future__ import annotations

from rhino.pipeline.cut.plan import (
    PreparedStep,
    StageMachine,
    StagePlan,
    StageTransfer,
    plan_step,
    prepare_step,
    stage_problem,
)
from rhino.pipeline.cut.problem import Net, StageOptions, StageProblem, StageSolution, StageUnit
from rhino.pipeline.cut.solve import best_linear_cut, plan_stages

__all__ = [
    "Net",
    "PreparedStep",
    "StageMachine",
    "StageOptions",
    "StagePlan",
    "StageProblem",
    "StageSolution",
    "StageTransfer",
    "StageUnit",
    "best_linear_cut",
    "plan_stages",
    "plan_step",
    "prepare_step",
    "stage_problem",
]  # fmt: skip
