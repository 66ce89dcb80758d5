"""What StableHLO's interpreter computes, result by result: what it does not know costs only what needs it.

Owns the way there and back. Complex numbers go in and out in two parts: MLIR's own constants of them end the process,
as some operations that the interpreter does not know do, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from bench.differential.program import numpy_type
from rhino.dialect import functions
from rhino.plan.module import parse_module
from rhino.program.element_types import element_type

# What its own documentation says it lacks, and what ends the process (jaxlib 0.10.2); and scatters: of windows that lie
# partly outside it applies a part, as StableHLO says and XLA does not.
_UNKNOWN = (
    "chlo.",
    "cholesky",
    "triangular",
    "fft",
    "batch_group",
    "batch_norm",
    "rng_bit",
    "scatter",
)
_COMPLEX = "complex"

# Products along a dimension without elements end the process.
_EMPTY_PRODUCT = re.compile(r"dot_general[^%]*%[^%]*%[^%]*[<x]0x")

Array = np.ndarray[Any, Any]


def is_known(text: str) -> bool:
    """Whether a program has nothing that the interpreter does not know or sees otherwise than XLA."""
    return _COMPLEX not in text and _is_safe(text)


def _is_safe(text: str) -> bool:
    return not any(word in text for word in _UNKNOWN) and not _EMPTY_PRODUCT.search(text)


def interpreted(text: str, arguments: Sequence[Array], wanted: Iterable[int]) -> dict[int, Array]:
    """The results of these numbers, without those that have an operation or a type that the interpreter does not know.

    Args:
      text: a StableHLO module with @main.
    """
    found = {}
    for index in wanted:
        module = parse_module(text, "program")
        try:
            with module.context, ir.Location.unknown():
                kept, kind = _keep_result(module, index)
                if not _is_safe(str(module)):
                    continue
                given = [part for i in kept for part in _parts(arguments[i])]
                parts = [_array(out) for out in stablehlo.eval_module(module, list(map(_attribute, given)))]
        except (ValueError, ir.MLIRError):  # a type without buffers, an operation that it does not know
            continue
        found[index] = parts[0].astype(kind) if len(parts) == 1 else _complex(*parts)
    return found


def _keep_result(module: ir.Module, index: int) -> tuple[list[int], np.dtype[Any]]:
    """@main with one result, and what that needs of its body and arguments; returns these arguments' numbers, its type.

    Floating point types that numpy cannot read of MLIR come out as f32, which holds all their numbers.
    """
    main = functions.find(module, "main")
    assert main is not None
    block = main.regions[0].blocks[0]
    *body, end = [view.operation for view in block.operations]
    needed = {end.operands[index]}
    ops = []
    for op in reversed(body):
        if any(result in needed for result in op.results):
            ops.append(op)
            needed.update(operand for inner in (op, *functions.walk(op)) for operand in inner.operands)
    kept = [i for i, argument in enumerate(block.arguments) if argument in needed]
    taken = [kind for i in kept for kind in _part_types(block.arguments[i].type)]
    tensor = ir.RankedTensorType(end.operands[index].type)
    dtype = numpy_type(str(tensor.element_type))
    given = _part_types(tensor)
    if dtype.name.startswith(("bfloat16", "float8")):
        given = [ir.RankedTensorType.get(tensor.shape, ir.F32Type.get())]
    with ir.InsertionPoint(module.body):
        new = func.FuncOp("part", (taken, given))
        entry = new.add_entry_block()
    with ir.InsertionPoint(entry):
        rest, values = iter(entry.arguments), {}
        for i in kept:
            parts = [next(rest) for _ in _part_types(block.arguments[i].type)]
            values[block.arguments[i]] = parts[0] if len(parts) == 1 else stablehlo.ComplexOp(*parts).result
        functions.copy_all(reversed(ops), values)
        out = values[end.operands[index]]
        if len(given) == 1:
            func.ReturnOp([out if given == [tensor] else stablehlo.ConvertOp(given[0], out).result])
        else:
            func.ReturnOp([stablehlo.RealOp(out).result, stablehlo.ImagOp(out).result])
    main.erase()
    new.operation.attributes["sym_name"] = ir.StringAttr.get("main")
    return kept, dtype


def _part_types(kind: ir.Type) -> list[ir.Type]:
    """The type, or that of the real and of the imaginary part."""
    tensor = ir.RankedTensorType(kind)
    if not isinstance(tensor.element_type, ir.ComplexType):
        return [tensor]
    return [ir.RankedTensorType.get(tensor.shape, ir.ComplexType(tensor.element_type).element_type)] * 2


def _parts(array: Array) -> list[Array]:
    return [np.ascontiguousarray(array.real), np.ascontiguousarray(array.imag)] if array.dtype.kind == "c" else [array]


def _complex(real: Array, imaginary: Array) -> Array:
    """Joined without arithmetic, which makes NaN of infinity."""
    joined = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    joined.real, joined.imag = real, imaginary
    return joined


def _attribute(array: Array) -> ir.DenseElementsAttr:
    """As MLIR's own constant; ValueError for types that its buffers do not have."""
    if array.dtype.name.startswith(("bfloat16", "float8")):
        bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
        kind = ir.Type.parse(element_type(array.dtype.name) or array.dtype.name)
        return ir.DenseElementsAttr.get(bits, type=kind, shape=list(array.shape))
    if array.dtype.kind != "u":
        return ir.DenseElementsAttr.get(array)
    return ir.DenseElementsAttr.get(array, signless=False, type=ir.IntegerType.get_unsigned(8 * array.dtype.itemsize))


def _array(found: ir.DenseElementsAttr) -> Array:
    """Its elements; ValueError for types that numpy does not have."""
    kind = str(ir.RankedTensorType(found.type).element_type)
    return np.array(found).view(numpy_type(kind))
