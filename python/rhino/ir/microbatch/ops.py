"""One operation made again with a micro-batch's shapes, at the current insertion point.

Owns the few attributes that mention sizes, and which examples an iota numbers. Types follow from the forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.attributes import RhinoKernel
from rhino.ir.cut import cut
from rhino.ir.kernel_calls import rule_of
from rhino.ir.kernel_parts import suit_rule, suit_shapes
from rhino.microbatch import OpCopy, Split
from rhino.microbatch.factors import find
from rhino.microbatch.forms import Form
from rhino.program.data import Graph, Op


class Types:
    """Types of parts of the batch, and the shapes in which a dimension is taken apart."""

    def __init__(self, microbatches: int, graph: Graph) -> None:
        self.microbatches, self.graph = microbatches, graph
        self._local: dict[tuple[Any, Split], Any] = {}

    def of(self, whole: Any, form: Form) -> Any:
        """The type of a value in a form."""
        if not isinstance(form, Split):
            return whole
        key = (whole, form)
        found = self._local.get(key)
        if found is None:
            shape = form.local(tuple(whole.shape), self.microbatches)
            found = self._local[key] = ir.RankedTensorType.get(shape, whole.element_type)
        return found

    def apart(self, shape: Sequence[int], split: Split, microbatches: int | None = None) -> tuple[list[int], int]:
        """The shape with the batch as examples of a micro-batch times micro-batches, and where the latter are."""
        whole = self.microbatches if microbatches is None else microbatches
        parts = [split.count // self.microbatches, whole]
        at = split.dim + 1
        if split.before > 1:
            parts.insert(0, split.before)
            at += 1
        if split.after > 1:
            parts.append(split.after)
        return [*shape[: split.dim], *parts, *shape[split.dim + 1 :]], at


def reshaped(value: Any, shape: Sequence[int]) -> Any:
    """The value in another shape."""
    if list(value.type.shape) == list(shape):
        return value
    return stablehlo.ReshapeOp(ir.RankedTensorType.get(shape, value.type.element_type), value).result


def make(types: Types, op: Any, copy: OpCopy, operands: Sequence[Any], index: Any) -> Sequence[Any]:
    """The results of an op without regions of its own program, made again from other operands."""
    if op.name == "stablehlo.iota" and _counts_examples(op, copy):
        return [_examples(types, op, copy, index)]
    if copy.positions:
        return ir.Operation.create(
            op.name, results=[v.type for v in operands], operands=list(operands), loc=op.location
        ).results
    new = op.clone()
    for i, value in enumerate(operands):
        new.operands[i] = value
    local = False
    for result, (_, form) in zip(new.results, copy.results, strict=True):
        if isinstance(form, Split):
            result.set_type(types.of(result.type, form))
            local = True
    local = local or any(isinstance(form, Split) for _, form in copy.operands)
    record = types.graph.ops[copy.op]
    if local and record.manual is not None:
        cut(op, new, record.manual, _batch(record, copy), types.microbatches)
    elif local and RhinoKernel.name in op.attributes:
        _kernel(op, new, copy, types.microbatches)
    elif local and op.name in _RESIZED:
        _RESIZED[op.name](op, new, copy)
    return new.results


def _batch(record: Op, copy: OpCopy) -> int:
    """The factor of a manual computation's rule that is the batch."""
    assert record.manual is not None and record.rule is not None
    for (_, form), mapping in zip(
        (*copy.operands, *copy.results), (*record.rule.operands, *record.rule.results), strict=True
    ):
        if isinstance(form, Split):
            return next(f for f in mapping[form.dim] if f in record.manual.free)
    raise AssertionError("no operand and no result is split")


def _counts_examples(op: Any, copy: OpCopy) -> bool:
    form = copy.results[0][1]
    return isinstance(form, Split) and form.dim == op.attributes["iota_dimension"].value


def _examples(types: Types, op: Any, copy: OpCopy, index: Any) -> Any:
    """The part of an iota along the batch: of before x count x after, micro-batch i counts i, i + N, i + 2N, .."""
    split = copy.results[0][1]
    assert isinstance(split, Split)
    wanted = types.of(op.results[0].type, split)
    integer = isinstance(wanted.element_type, ir.IntegerType)
    element = wanted.element_type if integer else ir.IntegerType.get_signless(32)
    n = types.microbatches
    parts = [(split.before, split.count * split.after), (split.count // n, n * split.after), (split.after, 1)]
    # Factors of one count nothing; the middle one stays, to hold the number of the micro-batch.
    parts = [part for at, part in enumerate(parts) if part[0] > 1 or at == 1]
    shape = [size for size, _ in parts]
    kind = ir.RankedTensorType.get(shape, element)
    scalar = ir.RankedTensorType.get([], element)

    def constant(value: int) -> Any:
        return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(element, value))).result

    total = index if index.type == scalar else stablehlo.ConvertOp(scalar, index).result
    total = stablehlo.BroadcastInDimOp(kind, total, ir.DenseI64ArrayAttr.get([])).result
    if split.after > 1:
        total = stablehlo.MulOp(total, constant(split.after)).result
    for dim, (_, stride) in enumerate(parts):
        counted = stablehlo.IotaOp(kind, dim).result
        if stride > 1:
            counted = stablehlo.MulOp(counted, constant(stride)).result
        total = stablehlo.AddOp(total, counted).result
    flat = reshaped(total, [prod(shape)])
    if not integer:
        flat = stablehlo.ConvertOp(ir.RankedTensorType.get([prod(shape)], wanted.element_type), flat).result
    if flat.type == wanted:
        return flat
    return stablehlo.BroadcastInDimOp(wanted, flat, ir.DenseI64ArrayAttr.get([split.dim])).result


def _kernel(op: Any, new: Any, copy: OpCopy, microbatches: int) -> None:
    """A kernel on a micro-batch: its configuration, what it costs, and the size of the batch in its rule."""
    rule = rule_of(op)
    for i, (_, form) in enumerate(copy.operands):
        if isinstance(form, Split):
            span = find(rule, rule.operands[i], form, op.operands[i].type.shape[form.dim])
            assert span is not None, "the analysis has found it"
            suit_rule(op, new, span.factor, microbatches)
            break
    suit_shapes(op, new, microbatches)


# One per operation whose attributes mention sizes: the original, its copy, and the forms.


def _constant(op: Any, new: Any, copy: OpCopy) -> None:
    value = ir.DenseElementsAttr(op.attributes["value"])
    new.attributes["value"] = ir.DenseElementsAttr.get_splat(new.results[0].type, value.get_splat_value())


def _slice(op: Any, new: Any, copy: OpCopy) -> None:
    """The batch is not cut: it is taken from its start to its end, or some of several runs of it are."""
    form = copy.results[0][1]
    if isinstance(form, Split):
        starts, limits = (list(ir.DenseI64ArrayAttr(op.attributes[f"{end}_indices"])) for end in ("start", "limit"))
        starts[form.dim] = _share(form.dim, op, new, starts[form.dim])
        limits[form.dim] = starts[form.dim] + new.results[0].type.shape[form.dim]
        new.attributes["start_indices"] = ir.DenseI64ArrayAttr.get(starts)
        new.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(limits)


def _pad(op: Any, new: Any, copy: OpCopy) -> None:
    """Runs of the batch that are added or taken away."""
    form = copy.results[0][1]
    if isinstance(form, Split):
        for name in ("edge_padding_low", "edge_padding_high"):
            edges = list(ir.DenseI64ArrayAttr(op.attributes[name]))
            edges[form.dim] = _share(form.dim, op, new, edges[form.dim])
            new.attributes[name] = ir.DenseI64ArrayAttr.get(edges)


def _share(dim: int, op: Any, new: Any, size: int) -> int:
    """Of a number of rows along the batch, those of a micro-batch."""
    return int(size * new.results[0].type.shape[dim] // op.results[0].type.shape[dim])


def _window(op: Any, new: Any, copy: OpCopy) -> None:
    """Sizes of what is taken from the first operand."""
    form = copy.operands[0][1]
    if isinstance(form, Split):
        sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
        if sizes[form.dim] == op.operands[0].type.shape[form.dim]:
            sizes[form.dim] = new.operands[0].type.shape[form.dim]
            new.attributes["slice_sizes"] = ir.DenseI64ArrayAttr.get(sizes)


_RESIZED: dict[str, Callable[[Any, Any, OpCopy], None]] = {
    "stablehlo.constant": _constant,
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.dynamic_slice": _window,
    "stablehlo.gather": _window,
}
