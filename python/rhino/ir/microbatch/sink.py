"""What only the update needs is computed there: nothing of it is kept through the micro-batches.

Owns that move. Knows nothing of how the loop was made.
"""

from __future__ import annotations

from typing import Any

from rhino.dialect import functions
from rhino.program.operations import NESTING, stablehlo

_EFFECTS = NESTING | stablehlo("custom_call rng")


def sink_behind(loop: Any) -> int:
    """Moves operations before a loop that it does not need, directly or through others, behind it, in their order.

    Returns: how many.
    """
    read = {v for op in functions.walk(loop) for v in op.operands} | set(loop.operands)
    before = []
    for view in loop.parent.regions[0].blocks[0].operations:
        if view.operation == loop:
            break
        before.append(view.operation)
    moved = 0
    for op in reversed(before):
        # What has effects keeps its place among others that do.
        fixed = op.name in _EFFECTS or not len(op.results)
        if fixed or any(result in read for result in op.results):
            read.update(op.operands)
            for inner in functions.walk(op):
                read.update(inner.operands)
        else:
            op.move_after(loop)
            moved += 1
    return moved
