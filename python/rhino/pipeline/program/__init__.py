"""A training step cut into per-stage programs, as plain data: what the runtime executes and the scheduler orders.

Owns the dataclasses. Imports neither jax nor MLIR; `rhino.ir.pipeline` makes them from IR.
"""

from __future__ import annotations

from rhino.pipeline.program.edges import PipelineEdge, edges_of
from rhino.pipeline.program.priced import FragmentSeconds, PricedProgram, StageSend
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
from rhino.pipeline.program.stage_memory import StageMemory
from rhino.pipeline.program.weight_fragment import awaited_ops, delayed_ops

__all__ = [
    "FRAGMENT_KINDS",
    "Fragment",
    "FragmentSeconds",
    "GroupMesh",
    "GroupValue",
    "PipelineEdge",
    "PipelineProgram",
    "PricedProgram",
    "Result",
    "StageArgument",
    "StageCarry",
    "StageMemory",
    "StageSend",
    "Transfer",
    "awaited_ops",
    "delayed_ops",
    "edges_of",
]
