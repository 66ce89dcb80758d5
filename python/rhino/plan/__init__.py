"""Plans: what was chosen for a program on a cluster, as data, in a module, in a file.

Owns the plan and its forms. Must not know: how plans are searched, nor tracing; jax only through `rhino.api`.
"""

from __future__ import annotations

from rhino.plan.data import (
    SCHEMA,
    Alternative,
    KernelUse,
    Machine,
    Plan,
    Predicted,
    Search,
    Sharding,
    Tensor,
    is_pipeline,
)

__all__ = [
    "SCHEMA", "Alternative", "KernelUse", "Machine", "Plan", "Predicted", "Search", "Sharding", "Tensor", "is_pipeline",
]  # fmt: skip
