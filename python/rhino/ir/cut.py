"""A manual computation on a part of a batch: the same body with smaller shapes.

Owns that rewriting of a copy. Which batch there is to cut was found by `rhino.program.bodies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoKernel
from rhino.ir.import_graph import number_block
from rhino.ir.kernel_calls import RULE, rule_of
from rhino.ir.kernel_parts import suit_rule, suit_shapes
from rhino.program.data import Manual, Rule
from rhino.sharding.problem import leading

# By operation, the attribute that has sizes of the first operand.
_SIZES = {
    "stablehlo.slice": "limit_indices",
    "stablehlo.dynamic_slice": "slice_sizes",
    "stablehlo.gather": "slice_sizes",
}


def cut(op: ir.Operation, made: ir.Operation, manual: Manual, factor: int, parts: int) -> None:
    """Makes a copy of a manual computation one of a part of its batch; its operands and results are that already.

    Args:
      factor: the batch, one of `manual.free`.
    """
    (values, ops), (_, before) = number_block(_block(made)), number_block(_block(op))
    split = dict(zip(values, ([f == factor for f in dims] for dims in manual.places), strict=True))
    for v, dims in split.items():
        if any(dims):
            kind: Any = ir.RankedTensorType(v.type)
            shape = [size // parts if d else size for size, d in zip(kind.shape, dims, strict=True)]
            v.set_type(ir.RankedTensorType.get(shape, kind.element_type))
    for record, new, old in zip(manual.body.ops, ops, before, strict=True):
        touched = [*(split[v] for v in new.operands), *(split[v] for v in new.results)]
        if not any(map(any, touched)):
            continue
        if new.name == "stablehlo.constant":
            value = ir.DenseElementsAttr(new.attributes["value"])
            new.attributes["value"] = ir.DenseElementsAttr.get_splat(new.results[0].type, value.get_splat_value())
        elif new.name in _SIZES:
            _resize(new, old, split[new.operands[0]])
        elif RhinoKernel.name in new.attributes and RULE in new.attributes:
            inner = _factor(rule_of(old), touched)
            suit_rule(old, new, inner, parts)
            suit_shapes(old, new, parts)
        elif record.manual is not None and record.rule is not None:
            inner = _factor(record.rule, touched)
            cut(old, new, record.manual, inner, parts)


def _block(op: ir.Operation) -> Any:
    return op.regions[0].blocks[0]


def _resize(new: ir.Operation, old: ir.Operation, dims: Sequence[bool]) -> None:
    name = _SIZES[new.name]
    sizes = list(ir.DenseI64ArrayAttr(new.attributes[name]))
    for d, is_cut in enumerate(dims):
        if is_cut and sizes[d] == old.operands[0].type.shape[d]:
            sizes[d] = new.operands[0].type.shape[d]
    new.attributes[name] = ir.DenseI64ArrayAttr.get(sizes)


def _factor(rule: Rule, touched: Sequence[Sequence[bool]]) -> int:
    """The factor that has the batch in an operation with a rule."""
    for mapping, dims in zip((*rule.operands, *rule.results), touched, strict=True):
        for dim, is_cut in zip(mapping, dims, strict=True):
            if is_cut:
                return leading(rule, dim)
    raise AssertionError("the operation touches the batch")
