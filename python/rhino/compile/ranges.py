"""Between which numbers an integer of a program lies, as far as constants and the counters of loops say.

Owns that; for one scalar at a time, and without a guess: what it does not understand has no range.
"""

from __future__ import annotations

from jaxlib.mlir import ir

# The least and the largest value.
Range = tuple[int, int]


def range_of(v: ir.Value) -> Range | None:
    """The range of a scalar made of constants and of what loops around it count; None for others."""
    if isinstance(v, ir.OpResult):
        return _computed(v.owner.operation)
    argument = ir.BlockArgument(v)
    loop = argument.owner.owner.operation
    return _counted(loop, argument.arg_number) if loop.name == "stablehlo.while" else None


def _computed(op: ir.Operation) -> Range | None:
    if op.name == "stablehlo.constant":
        return _constant(op)
    if op.name == "stablehlo.select":
        decided = _decided(op.operands[0])
        chosen = list(op.operands)[1:] if decided is None else [op.operands[1 if decided else 2]]
        found = [range_of(v) for v in chosen]
        known = [r for r in found if r is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(found) else None
    if op.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = (range_of(v) for v in op.operands)
    if left is None or right is None:
        return None
    if op.name == "stablehlo.add":
        return left[0] + right[0], left[1] + right[1]
    return left[0] - right[1], left[1] - right[0]


def _constant(op: ir.Operation) -> Range | None:
    value = op.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat:
        return None
    splat = value.get_splat_value()
    return (splat.value, splat.value) if isinstance(splat, ir.IntegerAttr) else None


def _decided(condition: ir.Value) -> bool | None:
    """What `a < b` is, where the ranges say: jax asks it of every index, which may count from the end."""
    op = condition.owner.operation if isinstance(condition, ir.OpResult) else None
    if op is None or op.name != "stablehlo.compare" or "LT" not in str(op.attributes["comparison_direction"]):
        return None
    left, right = (range_of(v) for v in op.operands)
    if left is None or right is None:
        return None
    if left[1] < right[0]:
        return True
    return False if left[0] >= right[1] else None


def _counted(loop: ir.Operation, number: int) -> Range | None:
    """The range of a loop's counter in its body: it begins with a constant, goes up, and ends before another."""
    condition, body = (region.blocks[0] for region in loop.regions)
    argument = ir.Value(body.arguments[number])
    last = list(body.operations)[-1].operation
    step = last.operands[number].owner.operation if isinstance(last.operands[number], ir.OpResult) else None
    others = [] if step is None or step.name != "stablehlo.add" else [v for v in step.operands if v != argument]
    if len(others) != 1:
        return None
    added = others[0].owner.operation if isinstance(others[0], ir.OpResult) else None
    # Only a constant: two counters that add each other up have no range.
    by = _constant(added) if added is not None and added.name == "stablehlo.constant" else None
    test = list(condition.operations)[-1].operation.operands[0]
    until = test.owner.operation if isinstance(test, ir.OpResult) else None
    if until is None or until.name != "stablehlo.compare" or "LT" not in str(until.attributes["comparison_direction"]):
        return None
    if until.operands[0] != condition.arguments[number]:
        return None
    first, end = range_of(loop.operands[number]), range_of(until.operands[1])
    if by is None or first is None or end is None or by[0] < 1:
        return None
    return first[0], end[1] - 1
