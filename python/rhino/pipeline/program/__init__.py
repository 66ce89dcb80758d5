"""A training step cut into per-stage programs, as plain data: what the runtime executes and the scheduler orders.

Owns the dataclasses. Imports neither jax nor MLIR; `rhino.ir.pipeline.program` makes them from IR.
"""

from __future__ import annotations

from rhino.pipeline.program.edges import Edge, PipelineEdge, SignatureEdge, all_edges, edges_of, signature_edges
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
from rhino.pipeline.program.stage_memory import StageMemory, peak_bytes
from rhino.pipeline.program.weight_fragment import awaited_ops, delayed_ops

__all__ = [
    "FRAGMENT_KINDS",
    "Edge",
    "Fragment",
    "FragmentSeconds",
    "GroupMesh",
    "GroupValue",
    "PipelineEdge",
    "PipelineProgram",
    "PricedProgram",
    "Result",
    "SignatureEdge",
    "StageArgument",
    "StageCarry",
    "StageMemory",
    "StageSend",
    "Transfer",
    "all_edges",
    "awaited_ops",
    "delayed_ops",
    "edges_of",
    "peak_bytes",
    "signature_edges",
]
