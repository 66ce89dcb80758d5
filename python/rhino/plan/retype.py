"""Arguments of @main that its program does not compute with, taken as another program stores them.

Owns this change of types at the boundary. Knows nothing of why an argument is stored as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoStrided
from rhino.plan.strided import factors_of

ALIAS = "tf.aliasing_output"  # on an argument: the result that takes its buffer
Shape = tuple[int, ...]


def take_stored(main: ir.Operation, shapes: Mapping[int, Shape]) -> None:
    """Give stored types to those of the arguments that are unused or only returned, and to results that alias them.

    Args:
      shapes: the stored shape by argument; an argument that has it already, or that is computed with, stays as it is.
    """
    arguments, results = functions.argument_attributes(main), functions.result_attributes(main)
    block = main.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    for i, stored in shapes.items():
        argument = block.arguments[i]
        original = argument.type
        uses = [(use.owner.operation, use.operand_number) for use in argument.uses]
        groups = factors_of(tuple(original.shape), stored)
        if tuple(original.shape) == stored or groups is None or any(owner != end for owner, _ in uses):
            continue
        with end.location:
            argument.set_type(ir.RankedTensorType.get(stored, original.element_type))
        cut = [(dim, [stored[at] for at in group]) for dim, group in enumerate(groups) if len(group) > 1]
        data = {"shape": list(original.shape), "dims": [{"dim": dim, "factors": sizes} for dim, sizes in cut]}
        strided = RhinoStrided.to_attr(data, main.context)
        arguments[i][RhinoStrided.name] = strided
        alias = arguments[i][ALIAS].value if ALIAS in arguments[i] else -1
        for _, slot in uses:
            if slot == alias:
                results[slot][RhinoStrided.name] = strided
            else:
                with end.location, ir.InsertionPoint(end):
                    end.operands[slot] = stablehlo.ReshapeOp(original, argument).result
    with main.context:
        kind = ir.FunctionType.get([a.type for a in block.arguments], [value.type for value in end.operands])
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
    functions.set_argument_attributes(main, arguments)
    functions.set_result_attributes(main, results)
