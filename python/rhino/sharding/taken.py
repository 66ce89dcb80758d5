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


def is_taken(op: Op, names: Sequence[str], sizes: Sequence[int], axis: int) -> bool:
    """Whether it is such an operation, and takes this axis of a mesh."""
    if op.manual is not None:
        return any(name == names[axis] for name, _ in op.manual.taken)
    return axis == LOCAL_AXIS and _sums_there(op, sizes)


def open_states(op: Op, node: Node, names: Sequence[str], sizes: Sequence[int], axis: int) -> Sequence[int]:
    """The states that an axis of a mesh may have there, whether its size divides or not.

    Where local sums are on the first axis the examples of each are split by others alone. On another mesh examples stay
    together: no reshape leaves them where they are.
    """
    if op.manual is not None:
        return manual.open_states(op.manual, node, names[axis])
    if op.local < 0 or op.rule is None:
        return range(node.states)
    if _sums_there(op, sizes):
        local = node.factors.index(op.local) + 1
        return (local,) if axis == LOCAL_AXIS else [s for s in range(node.states) if s != local]
    inner = {f for m in op.rule.operands for dim in m if op.local in dim for f in dim if f != op.local}
    return [s for s in range(node.states) if s == 0 or node.factors[s - 1] not in inner]


def order_of(op: Op, names: Sequence[str]) -> Order | None:
    """The axes from major to minor where several split one dimension; None where that is free."""
    if op.manual is not None and op.rule is not None:
        return manual.nested(op.manual, op.rule, names)
    # Local sums are of whole groups of examples.
    return (LOCAL_AXIS, *(a for a in range(len(names)) if a != LOCAL_AXIS)) if op.local >= 0 else None


def _sums_there(op: Op, sizes: Sequence[int]) -> bool:
    """Whether the first axis of a mesh has a device for each local sum that an operation makes."""
    return op.local >= 0 and op.rule is not None and op.rule.factor_sizes[op.local] == sizes[LOCAL_AXIS]
