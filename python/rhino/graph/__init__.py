"""The program as plain Python data: what the planner sees of a StableHLO module. No MLIR, no jax."""

from __future__ import annotations

from rhino.graph.data import Argument, Graph, Op, Rule, Value, dtype_bytes

__all__ = ["Argument", "Graph", "Op", "Rule", "Value", "dtype_bytes"]
