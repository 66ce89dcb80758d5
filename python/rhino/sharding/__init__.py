"""Search for distributed plans over plain program data: no MLIR, no jax."""

from __future__ import annotations

from rhino.sharding.planner import Options, plan_sharding
from rhino.sharding.solution import Solution

__all__ = ["Options", "Solution", "plan_sharding"]
