"""Operations that take axes of a mesh for themselves: manual computations, and those that make local sums.

Owns which states a plan may give to these, and how axes are nested there. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.program.data import Op
from rhino.sharding import manual
from rhino.sharding.layout import Order
from rhino.sharding.problem import Node

# The axis of a mesh that local sums are on: the outermost, over which devices are the farthest apart.
LOCAL_AXIS = 0


def is_taken(op: Op, names: Sequence[str], axis: int) -> bool:
    """Whether it is such an operation, and takes this axis."""
    if op.manual is not None:
        return any(name == names[axis] for name, _ in op.manual.taken)
    return op.local >= 0 and axis == LOCAL_AXIS


def open_states(op: Op, node: Node, names: Sequence[str], sizes: Sequence[int], axis: int) -> Sequence[int]:
    """The states that an axis of the mesh may have there, whatever its size."""
    if op.manual is not None:
        return manual.open_states(op.manual, node, names[axis])
    return _local_states(op, node, sizes, axis) if op.local >= 0 else range(node.states)


def order_of(op: Op, names: Sequence[str]) -> Order | None:
    """The axes from major to minor where several split one dimension; None where that is free."""
    if op.manual is not None and op.rule is not None:
        return manual.nested(op.manual, op.rule, names)
    # Local sums are of whole groups of examples.
    return (LOCAL_AXIS, *(a for a in range(len(names)) if a != LOCAL_AXIS)) if op.local >= 0 else None


def _local_states(op: Op, node: Node, sizes: Sequence[int], axis: int) -> Sequence[int]:
    """The first axis has the local sums, if it has as many devices; the examples of each are split by others alone.

    On another mesh examples stay together: no reshape leaves them where they are.
    """
    rule = op.rule
    assert rule is not None
    local = node.factors.index(op.local) + 1 if op.local in node.factors else 0
    if local and sizes[LOCAL_AXIS] == rule.factor_sizes[op.local]:
        return (local,) if axis == LOCAL_AXIS else [s for s in range(node.states) if s != local]
    inner = {f for m in rule.operands for dim in m if op.local in dim for f in dim if f != op.local}
    return [s for s in range(node.states) if s == 0 or node.factors[s - 1] not in inner]
