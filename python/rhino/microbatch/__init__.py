"""Micro-batches: how a training step becomes a loop that adds up gradients, decided on plain data.

Owns the analysis; `passes/partition/split_microbatch` reads a module into it and writes its answer back.
"""

from __future__ import annotations

from rhino.microbatch.analysis import batch_size, split_microbatches
from rhino.microbatch.facts import BatchFacts, Region
from rhino.microbatch.forms import NeededWhole, Onto, OwnEstimate, Partial, Refusal, Split, Whole
from rhino.microbatch.plan import CopiedRegion, MicrobatchPlan, OpCopy, Scaled, Step, TakePart

__all__ = [
    "BatchFacts",
    "CopiedRegion",
    "MicrobatchPlan",
    "NeededWhole",
    "Onto",
    "OpCopy",
    "OwnEstimate",
    "Partial",
    "Refusal",
    "Region",
    "Scaled",
    "Split",
    "Step",
    "TakePart",
    "Whole",
    "batch_size",
    "split_microbatches",
]  # fmt: skip
