"""A program whose layouts Shardy propagates, read for its price: every value's layout, each change as an operation.

Owns what Shardy is told of operations that it does not know, and what is read of its explicit reshards (`RESHARDS`).
Decides nothing.
"""

from __future__ import annotations

from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoKernel
from rhino.dialect.sdy import SHARDING
from rhino.errors import RhinoError
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.kernel_calls import RULE
from rhino.program.data import Graph

_NUMBER = "rhino.number"
# After propagation: operands and results of an operation agree on what splits it, or are resharded; sums are reduced.
RESHARDS = "func.func(sdy-insert-explicit-reshards{enable-full-version=true})"


def split_broadcasts(module: ir.Module) -> None:
    """Write `broadcast_in_dim` as HLO has it when XLA propagates: what adds dimensions of size 1 is a reshape.

    Shardy goes through reshapes before all that is no element-wise operation, and so comes to other layouts.
    """
    main = functions.find(module, "main")
    for op in list(functions.walk(main)) if main is not None else ():
        if op.name != "stablehlo.broadcast_in_dim":
            continue
        value, made = op.operands[0], ir.RankedTensorType(op.results[0].type)
        shape, result = sdy.shape_of(value.type), tuple(made.shape)
        dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        kept = [d for d, at in enumerate(dims) if shape[d] == result[at]]
        if prod(shape) != prod(result) and len(kept) == len(dims):
            continue  # only copies
        if dims != sorted(dims):
            continue  # a transpose, too
        with op.location, ir.InsertionPoint(op):
            if prod(shape) == prod(result):
                new = stablehlo.reshape(made, value)
            else:
                less = ir.RankedTensorType.get([shape[d] for d in kept], made.element_type)
                given = ir.DenseI64ArrayAttr.get([dims[d] for d in kept])
                new = stablehlo.broadcast_in_dim(made, stablehlo.reshape(less, value), given)
        op.results[0].replace_all_uses_with(new)
        op.erase()


def give_rules(module: ir.Module) -> None:
    """Say to Shardy that element-wise operations of chlo are: XLA has decomposed them before it propagates."""
    for op in _elementwise_of_chlo(module):
        shape = sdy.shape_of(op.results[0].type)
        dims = [[d] for d in range(len(shape))]
        with module.context:
            op.attributes[RULE] = sdy.sharding_rule(shape, [dims] * len(op.operands), [dims])


def take_rules(module: ir.Module) -> None:
    """Undo `give_rules`."""
    for op in _elementwise_of_chlo(module):
        if RULE in op.attributes:
            del op.attributes[RULE]


def _elementwise_of_chlo(module: ir.Module) -> list[ir.Operation]:
    main = functions.find(module, "main")
    return [
        op
        for op in (functions.walk(main) if main is not None else ())
        if op.name.startswith("chlo.")
        and RhinoKernel.name not in op.attributes  # which has a rule of its own
        and len(op.results) == 1
        and all(sdy.shape_of(v.type) == sdy.shape_of(op.results[0].type) for v in op.operands)
    ]


def number_operations(module: ir.Module) -> None:
    """Have every operation of @main keep its number, for `numbers_of` to find it again."""
    main = functions.find(module, "main")
    for i, op in enumerate(number_program(main)[1] if main is not None else ()):
        op.attributes[_NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, module.context), i)


def numbers_of(module: ir.Module) -> list[int]:
    """By operation of @main, the number it had; of one that Shardy put in, that of what reads it; -1 for others."""
    main = functions.find(module, "main")
    return [_number(op) for op in number_program(main)[1]] if main is not None else []


def _number(op: ir.Operation) -> int:
    while _NUMBER not in op.attributes:
        use = next(iter(op.results[0].uses), None) if len(op.results) else None
        if use is None or use.owner.operation.name.endswith("return"):
            return -1
        op = use.owner.operation
    return int(ir.IntegerAttr(op.attributes[_NUMBER]).value)


def read_propagated(module: ir.Module) -> Graph:
    """The program of a module after propagation and `RESHARDS`, which is changed, with all layouts as pins.

    Reductions that Shardy wrote are taken out: that an operation leaves partial sums follows from what splits it.
    """
    main = functions.find(module, "main")
    if main is None:
        raise RhinoError("module has no function @main", "name the step function @main, as jax does")
    for op in list(functions.walk(main)):
        if op.name == "sdy.all_reduce":
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif op.name == "sdy.constant":  # one use's copy of a constant, which says what sums begin with
            with op.location, ir.InsertionPoint(op):
                constant = stablehlo.ConstantOp(op.attributes["value"]).operation
            if SHARDING in op.attributes:
                constant.attributes[SHARDING] = op.attributes[SHARDING]
            op.results[0].replace_all_uses_with(constant.results[0])
            op.erase()
    return import_graph(module, read_op_shardings=True)
