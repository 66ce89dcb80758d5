"""A training step cut into per-stage programs, as plain data: what the runtime executes and the scheduler orders.

Owns the dataclasses. Imports neither jax nor MLIR; `rhino.passes.stage.read_program` makes them from IR.
"""

from __future__ import annotations

from rhino.pipeline.program.edges import PipelineEdge, edges_of
from rhino.pipeline.program.program import (
    FRAGMENT_KINDS,
    Argument,
    Carry,
    Fragment,
    Mesh,
    PipelineProgram,
    Result,
    Transfer,
    Value,
)

__all__ = [
    "FRAGMENT_KINDS",
    "Argument",
    "Carry",
    "Fragment",
    "Mesh",
    "PipelineEdge",
    "PipelineProgram",
    "Result",
    "Transfer",
    "Value",
    "edges_of",
]
