"""A training step cut into per-stage programs, as plain data: what the runtime executes and the scheduler orders.

Owns the dataclasses. Imports neither jax nor MLIR; `rhino.ir.pipeline` makes them from IR.
"""

from __future__ import annotations

from rhino.pipeline.program.edges import PipelineEdge, edges_of
from rhino.pipeline.program.program import (
    FRAGMENT_KINDS,
    Fragment,
    GroupMesh,
    GroupValue,
    PipelineProgram,
    Result,
    StageArgument,
    StageCarry,
    Transfer,
)

__all__ = [
    "FRAGMENT_KINDS",
    "Fragment",
    "GroupMesh",
    "GroupValue",
    "PipelineEdge",
    "PipelineProgram",
    "Result",
    "StageArgument",
    "StageCarry",
    "Transfer",
    "edges_of",
]
