"""Search for distributed plans over plain program data: no MLIR, no jax."""

from __future__ import annotations

from rhino.search.planner import Options, Solution, plan_sharding

__all__ = ["Options", "Solution", "plan_sharding"]
