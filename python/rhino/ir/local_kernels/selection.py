"""The local program of an approximate top-k: the call, with positions of its own.

Owns that. XLA takes the call for a choice of the largest only where it sees that the positions are an iota; what comes
into a manual computation it does not see, and sorts whole rows instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.ir.local_kernels.local import Local, same_call


def own_positions(local: Local) -> Sequence[Any]:
    """The same call on the device's part, where positions along whole dimensions are counted anew."""
    operands = [_counted(whole, part) for whole, part in zip(local.op.operands, local.operands, strict=True)]
    return same_call(replace(local, operands=operands))


def _counted(whole: Any, part: Any) -> Any:
    if isinstance(whole.owner, ir.Block) or whole.owner.name != "stablehlo.iota":
        return part
    along = ir.IntegerAttr(whole.owner.attributes["iota_dimension"]).value
    if whole.type.shape[along] != part.type.shape[along]:
        return part
    return stablehlo.IotaOp(part.type, along).result
