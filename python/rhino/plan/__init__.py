"""Plans: what was chosen for a program on a cluster, as data, in a module, in a file.

Owns the plan and its forms. Must not know: how plans are searched, nor tracing; texts.
"""

from __future__ import annotations

from rhino.plan.data import (
    SCHEMA,
    Machine,
    PlanData,
    Predicted,
    Search,
    Sharding,
    Tensor,
    is_pipeline,
)
from rhino.program.alternative import Alternative
from rhino.program.kernel_use import KernelUse

__all__ = [
    "SCHEMA", "Alternative", "KernelUse", "Machine", "PlanData", "Predicted", "Search", "Sharding", "Tensor",
    "is_pipeline",
]  # fmt: skip
