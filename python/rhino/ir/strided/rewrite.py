"""Splits chosen dimensions into (chunks, chunk) in every value they belong to, in place.

Owns one rewrite per kind of operation: renumbered dimensions, and a cut made on the dimension of chunks. Wherever an
operation keeps the original form, a reshape stands between; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.ir.strided.flow import StridedFlow
from rhino.ir.strided.program import LOOP, RETURN, OpRecord
from rhino.ir.strided.rules import WINDOW_ATTRIBUTES, dot_dims, gather_dims, scatter_dims
from rhino.program.operations import BRANCHES

# Per dimension of the original shape, the number of chunks it is split into; 0 where it stays.
Split = tuple[int, ...]


def stored_shape(shape: Sequence[int], split: Split) -> list[int]:
    """The shape with its split dimensions as (chunks, chunk)."""
    found: list[int] = []
    for size, chunks in zip(shape, split, strict=True):
        found += [chunks, size // chunks] if chunks else [size]
    return found


class StridedRewriter:
    """One rewrite of one program.

    Args:
      flow: the facts, whose program is rewritten.
      splits: per value its split, None where no dimension of it is split.
      arguments, results: those of @main whose type changes; others are reshaped where @main begins or ends.
    """

    def __init__(
        self, flow: StridedFlow, splits: Sequence[Split | None], arguments: frozenset[int], results: frozenset[int]
    ) -> None:
        self.flow = flow
        self.program = flow.program
        self.splits = splits
        self.arguments, self.results = arguments, results
        self.boundaries = 0

    def run(self) -> int:
        """Rewrites everything; returns how many reshapes to and from original forms were needed."""
        splits, values = self.splits, self.program.values
        for i in range(self.program.arguments):
            if splits[i] is not None:
                self.argument(i)
        for record in self.program.records:
            if all(splits[v] is None for v in (*record.operands, *record.results)):
                continue
            with record.op.location, ir.InsertionPoint(record.op):
                if record.name == LOOP:
                    for v in (*record.inner, *record.results):
                        if splits[v] is not None:
                            values[v].set_type(self.type_of(v))
                elif record.elementwise or record.name in BRANCHES:
                    self.retype(record)
                else:
                    _REWRITES.get(record.name, StridedRewriter.keep)(self, record)
        return self.boundaries

    # What all rewrites share.

    def split(self, v: int) -> Split:
        """The split of a value, with no dimension split if it has none."""
        return self.splits[v] or (0,) * len(self.program.shapes[v])

    def shape(self, v: int) -> list[int]:
        """The shape a value has after the rewrite."""
        return stored_shape(self.program.shapes[v], self.split(v))

    def type_of(self, v: int) -> ir.Type:
        """The type a value has after the rewrite."""
        return self.type(self.shape(v), self.program.values[v])

    def type(self, shape: Sequence[int], like: Any) -> ir.Type:
        """The tensor type of a shape, with the element type of a value."""
        return ir.RankedTensorType.get(shape, like.type.element_type)

    def positions(self, v: int) -> list[list[int]]:
        """Where each dimension of a value is after the rewrite: one place, or two if it is split."""
        found: list[list[int]] = []
        at = 0
        for chunks in self.split(v):
            found.append([at, at + 1] if chunks else [at])
            at += len(found[-1])
        return found

    def moved(self, v: int, dims: Sequence[int]) -> list[int]:
        """The places of some dimensions of a value after the rewrite, in order."""
        positions = self.positions(v)
        return [at for dim in dims for at in positions[dim]]

    def repeated(self, v: int, given: Sequence[int]) -> list[int]:
        """One number per dimension of a value, the same for both parts of a split one."""
        return [n for n, places in zip(given, self.positions(v), strict=True) for _ in places]

    def window(self, whole: int, part: int) -> list[int]:
        """The shape of a part of a value, cut along its chunks where it is split."""
        found: list[int] = []
        sizes = self.program.shapes
        for size, length, chunks in zip(sizes[whole], sizes[part], self.split(whole), strict=True):
            found += [length * chunks // size, size // chunks] if chunks else [length]
        return found

    def chunked(self, v: int, elements: Sequence[int]) -> list[int]:
        """How many elements are added to each dimension, as chunks where a value is split, and none inside a chunk."""
        found: list[int] = []
        for size, count, chunks in zip(self.program.shapes[v], elements, self.split(v), strict=True):
            found += [count * chunks // size, 0] if chunks else [count]
        return found

    def reshaped(self, value: Any, shape: Sequence[int]) -> Any:
        """The value in another shape, at the insertion point."""
        self.boundaries += 1
        return stablehlo.ReshapeOp(self.type(shape, value), value).result

    def operand(self, record: OpRecord, slot: int, shape: Sequence[int]) -> None:
        """Make an operand have a shape."""
        value = record.op.operands[slot]
        if list(value.type.shape) != list(shape):
            record.op.operands[slot] = self.reshaped(value, shape)

    def result(self, record: OpRecord, shape: Sequence[int], slot: int = 0) -> None:
        """Say what shape the operation makes; a reshape follows if the program wants another."""
        value, wanted = record.op.results[slot], self.shape(record.results[slot])
        value.set_type(self.type(shape, value))
        if list(shape) != wanted:
            with ir.InsertionPoint.after(record.op):
                changed = self.reshaped(value, wanted)
            value.replace_all_uses_except(changed, changed.owner.operation)

    def retype(self, record: OpRecord) -> None:
        """Operations that do not number dimensions."""
        for v, value in zip(record.results, record.op.results, strict=True):
            if self.splits[v] is not None:
                value.set_type(self.type_of(v))

    def keep(self, record: OpRecord) -> None:
        """The operation stays as it is, between reshapes."""
        for slot, v in enumerate(record.operands):
            if self.splits[v] is not None:
                self.operand(record, slot, self.program.shapes[v])
        for slot, v in enumerate(record.results):
            if self.splits[v] is not None:
                self.result(record, self.program.shapes[v], slot)

    def argument(self, i: int) -> None:
        value = self.program.values[i]
        if i in self.arguments:
            value.set_type(self.type_of(i))
            return
        with value.location, ir.InsertionPoint.at_block_begin(value.owner):
            changed = self.reshaped(value, self.shape(i))
        value.replace_all_uses_except(changed, changed.owner.operation)

    def main_results(self, record: OpRecord) -> None:
        for slot, v in enumerate(record.operands):
            if self.splits[v] is not None and slot not in self.results:
                self.operand(record, slot, self.program.shapes[v])

    # One per kind of operation.

    def constant(self, record: OpRecord) -> None:
        op = record.op
        try:
            value = ir.DenseElementsAttr(op.attributes["value"])
        except (ValueError, TypeError):  # a resource, or elided
            self.keep(record)
            return
        if not value.is_splat:
            self.keep(record)
            return
        wanted = self.type_of(record.results[0])
        op.attributes["value"] = ir.DenseElementsAttr.get_splat(wanted, value.get_splat_value())
        op.results[0].set_type(wanted)

    def iota(self, record: OpRecord) -> None:
        (v,) = record.results
        dim = record.op.attributes["iota_dimension"].value
        if self.split(v)[dim]:
            self.keep(record)
            return
        (at,) = self.positions(v)[dim]
        record.op.attributes["iota_dimension"] = _number(at)
        self.retype(record)

    def transpose(self, record: OpRecord) -> None:
        order = self.flow.ints(record.op, "permutation")
        record.op.attributes["permutation"] = _array(self.moved(record.operands[0], order))
        self.retype(record)

    def broadcast(self, record: OpRecord) -> None:
        operand, result = self.split(record.operands[0]), self.positions(record.results[0])
        # A dimension of size 1 is repeated: that of the chunks stands for both.
        dims = self.flow.ints(record.op, "broadcast_dimensions")
        places = [at for i, j in enumerate(dims) for at in (result[j] if operand[i] else result[j][:1])]
        record.op.attributes["broadcast_dimensions"] = _array(places)
        self.retype(record)

    def reduce(self, record: OpRecord) -> None:
        dims = self.flow.ints(record.op, "dimensions")
        record.op.attributes["dimensions"] = _array(self.moved(record.operands[0], dims))
        self.retype(record)

    def reduce_window(self, record: OpRecord) -> None:
        op, (v, *_) = record.op, record.operands
        for name in WINDOW_ATTRIBUTES:
            if name in op.attributes:
                op.attributes[name] = _array(self.repeated(v, self.flow.ints(op, name)))
        if "padding" in op.attributes:
            rows = self.repeated(v, range(len(self.program.shapes[v])))
            padding = np.array(ir.DenseIntElementsAttr(op.attributes["padding"]))[rows]
            op.attributes["padding"] = ir.DenseIntElementsAttr.get(padding)
        self.retype(record)

    def dot(self, record: OpRecord) -> None:
        left, right = record.operands
        left_batch, right_batch, left_sum, right_sum = dot_dims(self.flow, record.op)
        record.op.attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
            self.moved(left, left_batch),
            self.moved(right, right_batch),
            self.moved(left, left_sum),
            self.moved(right, right_sum),
        )
        self.retype(record)

    def reshape(self, record: OpRecord) -> None:
        op = record.op
        wanted = self.shape(record.results[0])
        if list(op.operands[0].type.shape) == wanted:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        else:
            self.retype(record)

    def slice(self, record: OpRecord) -> None:
        (v,) = record.operands
        cuts: list[tuple[int, int, int]] = []
        given = (self.flow.ints(record.op, f"{name}_indices") for name in ("start", "limit"))
        bounds = zip(*given, self.flow.ints(record.op, "strides"), strict=True)
        for cut, size, chunks in zip(bounds, self.program.shapes[v], self.split(v), strict=True):
            chunk = size // chunks if chunks else 0
            cuts += [(cut[0] // chunk, cut[1] // chunk, 1), (0, chunk, 1)] if chunks else [cut]
        for name, values in zip(("start_indices", "limit_indices", "strides"), zip(*cuts, strict=True), strict=True):
            record.op.attributes[name] = _array(values)
        self.result(record, self.window(v, record.results[0]))

    def pad(self, record: OpRecord) -> None:
        (v,) = record.results
        self.operand(record, 0, self.window(v, record.operands[0]))
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding"):
            record.op.attributes[name] = _array(self.chunked(v, self.flow.ints(record.op, name)))
        self.retype(record)

    def concatenate(self, record: OpRecord) -> None:
        (v,) = record.results
        for slot, operand in enumerate(record.operands):
            self.operand(record, slot, self.window(v, operand))
        record.op.attributes["dimension"] = _number(self.positions(v)[record.op.attributes["dimension"].value][0])
        self.retype(record)

    def dynamic_slice(self, record: OpRecord) -> None:
        op, whole, part = record.op, record.operands[0], record.results[0]
        shape = self.window(whole, part)
        value = op.results[0]
        attributes = {name: op.attributes[name] for name in op.attributes} | {"slice_sizes": _array(shape)}
        fresh = ir.Operation.create(
            op.name,
            [self.type(shape, value)],
            [op.operands[0], *self.starts(record, whole, part, 1)],
            attributes,
        )
        wanted = self.shape(part)
        made = fresh.results[0] if shape == wanted else self.reshaped(fresh.results[0], wanted)
        value.replace_all_uses_with(made)
        op.erase()

    def dynamic_update_slice(self, record: OpRecord) -> None:
        op, (whole, part) = record.op, record.operands[:2]
        self.operand(record, 1, self.window(whole, part))
        attributes = {name: op.attributes[name] for name in op.attributes}
        operands = [op.operands[0], op.operands[1], *self.starts(record, whole, part, 2)]
        fresh = ir.Operation.create(op.name, [self.type_of(record.results[0])], operands, attributes)
        op.results[0].replace_all_uses_with(fresh.results[0])
        op.erase()

    def starts(self, record: OpRecord, whole: int, part: int, first: int) -> list[Any]:
        """Where a window starts, per dimension: at a known chunk or with all chunks in it, and at 0 inside a chunk."""
        found: list[Any] = []
        shapes = self.program.shapes
        for dim, chunks in enumerate(self.split(whole)):
            start = record.op.operands[first + dim]
            if not chunks or shapes[whole][dim] == shapes[part][dim]:
                # A window as large as the dimension starts at 0 whatever the operand says: it is clamped.
                found += [start, start] if chunks else [start]
                continue
            known = self.flow.constant(record.operands[first + dim])
            assert known is not None, "a dimension with a moving window is never split"
            room = shapes[whole][dim] - shapes[part][dim]
            chunk = min(max(known, 0), room) * chunks // shapes[whole][dim]
            for value in (chunk, 0):
                attribute = ir.DenseElementsAttr.get_splat(
                    start.type, ir.IntegerAttr.get(start.type.element_type, value)
                )
                found.append(stablehlo.ConstantOp(attribute).result)
        return found

    def sort(self, record: OpRecord) -> None:
        (at,) = self.positions(record.results[0])[record.op.attributes["dimension"].value]
        record.op.attributes["dimension"] = _number(at)
        self.retype(record)

    def reverse(self, record: OpRecord) -> None:
        dims = self.flow.ints(record.op, "dimensions")
        record.op.attributes["dimensions"] = _array(self.moved(record.results[0], dims))
        self.retype(record)

    def gather(self, record: OpRecord) -> None:
        whole, indices = record.operands
        n = gather_dims(self.flow, record.op)
        record.op.attributes["dimension_numbers"] = stablehlo.GatherDimensionNumbers.get(
            self.moved(record.results[0], n.offset_dims),
            self.moved(whole, n.collapsed_slice_dims),
            self.moved(whole, n.operand_batching_dims),
            self.moved(indices, n.start_indices_batching_dims),
            self.moved(whole, n.start_index_map),
            self.vector(indices, n.index_vector_dim),
        )
        # A batching dimension is sliced to 1, split or not; any other that is split is taken whole.
        sizes = zip(
            self.flow.ints(record.op, "slice_sizes"), self.program.shapes[whole], self.split(whole), strict=True
        )
        record.op.attributes["slice_sizes"] = _array(
            [
                n
                for taken, size, k in sizes
                for n in ((k, size // k) if k and taken == size else (taken,) * (1 + (k > 0)))
            ]
        )
        self.retype(record)

    def scatter(self, record: OpRecord) -> None:
        count = len(record.results)
        whole, indices, window = record.operands[0], record.operands[count], record.operands[count + 1]
        n = scatter_dims(self.flow, record.op)
        record.op.attributes["scatter_dimension_numbers"] = stablehlo.ScatterDimensionNumbers.get(
            self.moved(window, n.update_window_dims),
            self.moved(whole, n.inserted_window_dims),
            self.moved(whole, n.input_batching_dims),
            self.moved(indices, n.scatter_indices_batching_dims),
            self.moved(whole, n.scattered_dims_to_operand_dims),
            self.vector(indices, n.index_vector_dim),
        )
        self.retype(record)

    def vector(self, indices: int, dim: int) -> int:
        """Where the index vectors are among the dimensions of the indices; past the last one if they are scalars."""
        positions = self.positions(indices)
        return positions[dim][0] if dim < len(positions) else sum(map(len, positions))


def _array(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values))


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


_REWRITES: dict[str, Callable[[StridedRewriter, OpRecord], None]] = {
    name if name == RETURN else f"stablehlo.{name}": rewrite
    for name, rewrite in {
        RETURN: StridedRewriter.main_results, "constant": StridedRewriter.constant, "iota": StridedRewriter.iota,
        "transpose": StridedRewriter.transpose, "broadcast_in_dim": StridedRewriter.broadcast,
        "reduce": StridedRewriter.reduce, "dot_general": StridedRewriter.dot, "reshape": StridedRewriter.reshape,
        "slice": StridedRewriter.slice, "pad": StridedRewriter.pad, "concatenate": StridedRewriter.concatenate,
        "dynamic_slice": StridedRewriter.dynamic_slice, "dynamic_update_slice": StridedRewriter.dynamic_update_slice,
        "sort": StridedRewriter.sort, "reverse": StridedRewriter.reverse, "gather": StridedRewriter.gather,
        "scatter": StridedRewriter.scatter,
    }.items()
}  # fmt: skip
