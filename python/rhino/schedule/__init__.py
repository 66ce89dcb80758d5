"""Pipeline schedules: the order in which each group of devices computes, sends and frees what.

Owns tasks, the costs schedules are made from, their making, their proof and their simulation. Imports neither jax nor
MLIR.
"""

from rhino.schedule.costs import Edge, Exchange, PipelineCosts
from rhino.schedule.tasks import Schedule, Task

__all__ = ["Edge", "Exchange", "PipelineCosts", "Schedule", "Task"]
