"""What a training step computes again in its backward pass instead of keeping it.

Plain data in, plain data out: `find_sides` tells the passes apart, `read_step` where the forward pass is narrow,
`choose` what of a segment is kept under a policy. The rewrite is in `rhino.ir.recompute`.
"""

from __future__ import annotations

from rhino.recompute.choose import FUSED, Segment, Step, choose, is_fused, keep_least, kept_bytes, price, read_step
from rhino.recompute.sides import fixed_values, products

__all__ = [
    "FUSED", "Segment", "Step", "choose", "fixed_values", "is_fused", "keep_least", "kept_bytes",
    "price", "products", "read_step",
]  # fmt: skip
