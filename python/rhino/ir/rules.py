"""Shardy's factor rules without what XLA would compute wrongly, dearly or not at all.

Owns what is taken out of a rule when a program is imported. Which reductions devices can share is in
`rhino.program.partial`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect.reducers import REDUCING, combiners_of, starts_neutral
from rhino.ir.convolutions import numbers
from rhino.program.data import Rule
from rhino.program.operations import CONTRACTIONS
from rhino.program.partial import combined


def offered(op: Any, rule: Rule) -> Rule:
    """The rule of an operation as the search may use it: some factors of sums must not be split over devices.

    What no back end can combine stays a sum for those who split it in time: it is in both `reduction` and `replicate`.
    """
    if op.name == "stablehlo.convolution" and _grouped_product(op):
        # XLA: grouped-products-wrong
        _, kernel, _ = numbers(op)
        groups = {f for d in "oi" for f in rule.operands[1][kernel.index(d)]}
        rule = dataclasses.replace(rule, replicate=(*rule.replicate, *sorted(groups - {*rule.replicate})))
    if op.name == "stablehlo.pad":
        # XLA: stretched-pads-end-the-process
        spread = [d for d, n in enumerate(ir.DenseI64ArrayAttr(op.attributes["interior_padding"])) if n]
        stretched = {f for d in spread for f in rule.operands[0][d]} - {*rule.replicate}
        return dataclasses.replace(rule, replicate=(*rule.replicate, *sorted(stretched)))
    if not rule.reduction:
        return rule
    if op.name == "stablehlo.convolution" and (cut := _windows(op, rule)):
        reduction = tuple(f for f in rule.reduction if f not in cut)
        rule = dataclasses.replace(rule, reduction=reduction, replicate=(*rule.replicate, *sorted(cut)))
    if op.name == "stablehlo.convolution" and _grouped_batch(op):
        # XLA: batch-groups-summed-over-idle-axes
        rule = dataclasses.replace(rule, entire=rule.reduction)
    if not in_parts(op):
        rule = dataclasses.replace(rule, replicate=(*rule.replicate, *rule.reduction))
    return rule


def in_parts(op: Any) -> bool:
    """Whether devices may each have a part of what an operation sums, and then combine their results."""
    dtypes = tuple(str(result.type.element_type) for result in op.results)
    if op.name in CONTRACTIONS:
        return combined(("add",), dtypes)
    if op.name in REDUCING:
        found = combiners_of(op)
        return (
            combined(found, dtypes)
            and not _drops(op)
            and (
                # A scatter's operand belongs to one of the devices, the others start from what changes nothing.
                op.name == "stablehlo.scatter" or all(starts_neutral(op, i, kind) for i, kind in enumerate(found))
            )
        )
    return True


def _drops(op: Any) -> bool:
    """Whether XLA drops a result that nobody reads, as the index of a maximum. `XLA: unread-results-dropped`."""
    count = len(op.results)
    read = [_is_read(result) for result in op.results]
    if count == 1 or all(read):
        return False
    block = op.regions[0].blocks[0]
    returned = list(list(block.operations)[-1].operands)
    pending = [returned[i] for i in range(count) if read[i]]
    numbers = {argument: i % count for i, argument in enumerate(block.arguments)}
    seen, needed = set(pending), set[int]()
    while pending:
        value = pending.pop()
        if value in numbers:
            needed.add(numbers[value])
        if isinstance(value.owner, ir.Block):
            continue
        more = [v for v in value.owner.operands if v not in seen]
        seen.update(more)
        pending.extend(more)
    return len(needed) < count


def _is_read(value: Any) -> bool:
    """Whether something is made of a value that has elements, or leaves the region with it."""
    return any(
        not use.owner.results or any(0 not in getattr(r.type, "shape", ()) for r in use.owner.results)
        for use in value.uses
    )


def _windows(op: Any, rule: Rule) -> set[int]:
    """The windows of a convolution, which must not be cut: XLA would exchange halos of both operands for them.

    A kernel gradient is a convolution with windows as large as the image; Shardy takes their dims for contracted ones.
    Those that are as large and lie on it, once, are: of others XLA (0.10.2) adds up parts that do not belong together.
    """
    _, kernel, result = numbers(op)
    sizes = op.results[0].type.shape
    moving = [d for d in kernel if d.isdigit() and (sizes[result.index(d)] > 1 or not _covers(op, d))]
    return {f for d in moving for f in rule.operands[1][kernel.index(d)] if f in rule.reduction}


def _covers(op: Any, dim: str) -> bool:
    """Whether the window of a spatial dimension is the image: of its size, neither padded, dilated nor reversed."""
    image, kernel, _ = numbers(op)
    at = int(dim)
    given = op.attributes
    padding = list(ir.DenseIntElementsAttr(given["padding"])) if "padding" in given else []
    dilations = [ir.DenseI64ArrayAttr(given[name])[at] for name in ("lhs_dilation", "rhs_dilation") if name in given]
    reversed_ = "window_reversal" in given and ir.DenseBoolArrayAttr(given["window_reversal"])[at]
    same = op.operands[0].type.shape[image.index(dim)] == op.operands[1].type.shape[kernel.index(dim)]
    return same and not any(padding[2 * at : 2 * at + 2]) and all(n == 1 for n in dilations) and not reversed_


def _grouped_product(op: Any) -> bool:
    """Whether a convolution has groups of features and no window that moves over more than one element."""
    if _count(op, "feature_group_count") == 1:
        return False
    image, kernel, _ = numbers(op)
    sizes, windows = op.operands[0].type.shape, op.operands[1].type.shape
    moving = ((sizes[image.index(d)], windows[kernel.index(d)]) for d in kernel if d.isdigit())
    return all(window in (1, size) or size == 1 for size, window in moving)


def _grouped_batch(op: Any) -> bool:
    """Whether a convolution takes its groups from the batch, as kernel gradients of grouped convolutions do."""
    return _count(op, "batch_group_count") > 1


def _count(op: Any, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value if name in op.attributes else 1
