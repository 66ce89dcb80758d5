"""The local program of cuBLAS calls: ordinary operations, from which XLA makes such calls itself.

Owns writing a product and what is fused behind it. What a call computes is read by `rhino.kernels.products`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.constants import splat
from rhino.ir.diagnostics import PassError
from rhino.ir.kernel_calls import read_call, tensor_of
from rhino.ir.local_kernels.local import Local
from rhino.kernels.data import Refused
from rhino.kernels.products import Product, read_product

# Of gelu by tanh: sqrt(2 / pi), and the factor of the cube.
_GELU = (0.7978845608028654, 0.044715)
# Largest finite values of fp8: cuBLAS saturates.
_LARGEST = {"f8E4M3FN": 448.0, "f8E5M2": 57344.0, "f8E4M3FNUZ": 240.0, "f8E5M2FNUZ": 57344.0}


def product(local: Local) -> Sequence[Any]:
    """What the call computes, on local operands. Raises PassError where the call is not one that is known."""
    try:
        read = read_product(read_call(local.op))
    except Refused as refused:
        raise PassError(local.op, refused.message) from None
    kind = local.results[0]
    scalar = _accumulator(kind.element_type)
    wide = ir.RankedTensorType.get(kind.shape, scalar)

    value = _dot(read, local.operands, wide)
    value = _times(value, read.alpha)
    # Scales of fp8: of lhs and rhs in front, those of an addend and of the result behind.
    for position in read.scales[:2]:
        value = stablehlo.MulOp(value, _spread(local.operands[position], wide, ())).result
    if read.addend >= 0:
        addend = _converted(local.operands[read.addend], scalar)
        if len(read.scales) > 3:
            addend = stablehlo.MulOp(addend, _spread(local.operands[read.scales[2]], wide, ())).result
        value = stablehlo.AddOp(value, _times(addend, read.beta)).result
    if read.bias >= 0:
        bias = local.operands[read.bias]
        last = range(len(kind.shape) - len(bias.type.shape), len(kind.shape))
        value = stablehlo.AddOp(value, _spread(bias, wide, last)).result
    argument = value
    value = _applied(read.function, value)
    made = [_rounded(value, read, local, kind)]
    for position, other in enumerate(local.results[1:], 1):
        if position == read.before:
            made.append(_converted(argument, other.element_type))
        elif position == read.largest:
            made.append(_largest(value, other))
        else:
            made.append(splat(other, 0))  # memory to work in
    return made


def _accumulator(result: Any) -> Any:
    """The type that cuBLAS adds up in."""
    return result if isinstance(result, ir.IntegerType | ir.ComplexType | ir.F64Type) else ir.F32Type.get()


def _dot(read: Product, operands: Sequence[Any], kind: Any) -> Any:
    numbers = stablehlo.DotDimensionNumbers.get(
        list(read.lhs_batch), list(read.rhs_batch), list(read.lhs_contracting), list(read.rhs_contracting)
    )
    precision = [stablehlo.PrecisionAttr.get(p) for p in read.precision]
    return stablehlo.DotGeneralOp(
        kind, operands[0], operands[1], numbers, precision_config=ir.ArrayAttr.get(precision) if precision else None
    ).result


def _times(value: Any, factor: float) -> Any:
    return value if factor == 1 else stablehlo.MulOp(value, splat(value.type, factor)).result


def _converted(value: Any, element: Any) -> Any:
    if value.type.element_type == element:
        return value
    return stablehlo.ConvertOp(ir.RankedTensorType.get(value.type.shape, element), value).result


def _spread(value: Any, kind: Any, dims: Sequence[int]) -> Any:
    """A value, in the type of a result, repeated over all but some of its dimensions."""
    if not len(dims) and value.type.shape:
        value = stablehlo.ReshapeOp(ir.RankedTensorType.get([], value.type.element_type), value).result
    value = _converted(value, kind.element_type)
    return stablehlo.BroadcastInDimOp(kind, value, ir.DenseI64ArrayAttr.get(list(dims))).result


def _applied(function: str, value: Any) -> Any:
    if function == "RELU":
        return stablehlo.MaxOp(value, splat(value.type, 0)).result
    if function == "GELU":
        cube = stablehlo.MulOp(stablehlo.MulOp(value, value).result, value).result
        inner = stablehlo.AddOp(value, _times(cube, _GELU[1])).result
        tanh = stablehlo.TanhOp(_times(inner, _GELU[0])).result
        return stablehlo.MulOp(_times(value, 0.5), stablehlo.AddOp(tanh, splat(value.type, 1)).result).result
    return value


def _rounded(value: Any, read: Product, local: Local, kind: Any) -> Any:
    """The value in the result's type, scaled and saturated where that has eight bits."""
    largest = _LARGEST.get(tensor_of(kind).dtype)
    if largest is not None:
        if len(read.scales) > 2:
            value = stablehlo.MulOp(value, _spread(local.operands[read.scales[-1]], value.type, ())).result
        scalar = ir.RankedTensorType.get([], value.type.element_type)
        value = stablehlo.ClampOp(splat(scalar, -largest), value, splat(scalar, largest)).result
    return _converted(value, kind.element_type)


def _largest(value: Any, kind: Any) -> Any:
    """The largest absolute value."""
    scalar = ir.RankedTensorType.get([], value.type.element_type)
    op = stablehlo.ReduceOp(
        [scalar], [stablehlo.AbsOp(value).result], [splat(scalar, 0)],
        ir.DenseI64ArrayAttr.get(list(range(len(value.type.shape)))),
    )  # fmt: skip
    block = op.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([stablehlo.MaxOp(*block.arguments).result])
    return _converted(op.results[0], kind.element_type)
