"""Search for distributed plans over plain program data: no MLIR, no jax."""

from __future__ import annotations

from rhino.search.planner import Options, plan_sharding
from rhino.search.solution import Solution

__all__ = ["Options", "Solution", "plan_sharding"]
