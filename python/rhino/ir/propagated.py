"""A program whose layouts Shardy propagated, read for its price: every value's layout, and each change as an operation.

Owns what is read of Shardy's explicit reshards, which `RESHARDS` puts in. Decides nothing.
"""

from __future__ import annotations

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.sdy import SHARDING
from rhino.errors import RhinoError
from rhino.ir.import_graph import import_graph
from rhino.program.data import Graph

# After propagation: operands and results of an operation agree on what splits it, or are resharded; sums are reduced.
RESHARDS = "func.func(sdy-insert-explicit-reshards{enable-full-version=true})"


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
