"""Micro-batches: how a training step becomes a loop that adds up gradients, decided on plain data.

Owns the analysis; `passes/partition/split_microbatch` reads a module into it and writes its answer back.
"""

from __future__ import annotations

from rhino.microbatch.analysis import split_microbatches
from rhino.microbatch.facts import Facts, Region
from rhino.microbatch.forms import Estimate, Loose, Onto, Partial, Refusal, Split, Whole
from rhino.microbatch.plan import Body, Copy, Cut, Plan, Scaled, Step

__all__ = [
    "Body", "Copy", "Cut", "Estimate", "Facts", "Loose", "Onto", "Partial", "Plan", "Refusal", "Region", "Scaled",
    "Split", "Step", "Whole", "split_microbatches",
]  # fmt: skip
