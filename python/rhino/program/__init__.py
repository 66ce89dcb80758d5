"""The program as plain Python data: what the planner sees of a StableHLO module. No MLIR, no jax."""

from __future__ import annotations

from rhino.program.data import SMALL_RESULT_BYTES, Argument, Graph, Kernel, Manual, Op, Rule, Sent, Value
from rhino.program.element_types import dtype_bytes

__all__ = ["SMALL_RESULT_BYTES", "Argument", "Graph", "Kernel", "Manual", "Op", "Rule", "Sent", "Value", "dtype_bytes"]
