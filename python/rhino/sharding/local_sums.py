"""Operations that make local sums: on which axis of a mesh these are, and what is left to the others.

Owns which states a plan may give to such an operation. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.program.data import Op
from rhino.sharding.problem import Node

# The axis of a mesh that local sums are on: the outermost, over which devices are the farthest apart.
LOCAL_AXIS = 0


def local_states(op: Op, node: Node, sizes: Sequence[int], axis: int) -> Sequence[int]:
    """The states that an axis may have: the first that of the local sums, if it has as many devices, others any other.

    Examples of one local sum can only be split where those sums are, and on a device alone.
    """
    rule = op.rule
    assert rule is not None
    local = node.factors.index(op.local) + 1 if op.local in node.factors else 0
    if local and sizes[LOCAL_AXIS] == rule.factor_sizes[op.local]:
        return (local,) if axis == LOCAL_AXIS else [s for s in range(node.states) if s != local]
    inner = {f for m in rule.operands for dim in m if op.local in dim for f in dim if f != op.local}
    return [s for s in range(node.states) if s == 0 or node.factors[s - 1] not in inner]


def local_order(axes: int) -> tuple[int, ...]:
    """The axes from major to minor where several split one dimension: local sums are whole groups of examples."""
    return (LOCAL_AXIS, *(a for a in range(axes) if a != LOCAL_AXIS))
