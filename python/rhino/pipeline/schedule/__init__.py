"""Pipeline schedules: the order in which each group of devices computes, sends and frees what.

Owns tasks, the costs schedules are made from, their making, their proof and their simulation. Imports neither jax nor
MLIR.
"""

from __future__ import annotations

from rhino.pipeline.schedule.checker import check
from rhino.pipeline.schedule.costs import Edge, Exchange, PipelineCosts
from rhino.pipeline.schedule.estimate import estimate_step_s
from rhino.pipeline.schedule.generate import make_schedule
from rhino.pipeline.schedule.interleaved import interleaved_in_flight
from rhino.pipeline.schedule.simulator import Simulation, simulate
from rhino.pipeline.schedule.tasks import SCHEDULES, ScheduledStep, Task
from rhino.pipeline.schedule.trace import chrome_trace
from rhino.pipeline.schedule.warmup import choose_warmup, warmup_counts

__all__ = [
    "SCHEDULES",
    "Edge",
    "Exchange",
    "PipelineCosts",
    "ScheduledStep",
    "Simulation",
    "Task",
    "check",
    "choose_warmup",
    "chrome_trace",
    "estimate_step_s",
    "interleaved_in_flight",
    "make_schedule",
    "simulate",
    "warmup_counts",
]
