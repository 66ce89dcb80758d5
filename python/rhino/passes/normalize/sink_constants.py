"""The pass rhino-sink-constants: what follows from constants alone is made where it is read."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.constants import numbers_of
from rhino.dialect.loops import narrow
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, PassLog, register
from rhino.program.operations import HEAVY, SOURCES, stablehlo

_LOOP, _BARRIER = "stablehlo.while", "stablehlo.optimization_barrier"
# XLA makes these inside of what reads them, for less than reading them from memory. Functions such as sine cost more.
_CHEAP = SOURCES | stablehlo(
    "broadcast_in_dim reshape transpose slice convert compare select clamp and or xor not add subtract multiply "
    "maximum minimum negate abs sign"
)
# They read operands from memory whatever these are made of.
_READS_MEMORY = HEAVY | stablehlo("custom_call") | {"func.call"}
# More operations than a mask, a bias by distance or a table of positions takes.
_MOST = 64
# A constant that says each element by itself, and is larger, is a table that somebody computed.
_ELEMENTS = 64


@register
class SinkConstants(Pass):
    """Make what follows from constants alone, such as a causal mask, where it is read: in the loop, behind the barrier.

    jax takes what does not depend on a layer out of `lax.scan`, and `jax.checkpoint` puts a barrier in front of what a
    layer reads. So each layer reads the mask of all heads, and the array of -inf beside it, from memory, where XLA
    would make both inside of what reads them.

    Requires: no calls in @main (run `rhino-inline`).

    Ensures: no loop in @main carries unchanged, and no barrier hands on, a tensor that cheap operations (comparing,
    choosing, adding, laying out) make of splats and `iota`, unless a product, a gather or a call reads it.

    Example:
      ```mlir
      %mask = stablehlo.compare GE, %rows, %columns
      %r:2 = stablehlo.while(%i = %c0, %m = %mask) : tensor<i32>, tensor<2048x2048xi1> ... do {
        %0 = stablehlo.select %m, %scores, %least
        ...
      // becomes a loop that carries %i
        %m = stablehlo.compare GE, %rows, %columns
        %0 = stablehlo.select %m, %scores, %least
      ```
    """

    name: ClassVar[str] = "rhino-sink-constants"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Take them out of barriers, copy them into loops, outer ones first, and take them out of barriers there."""
        main = main_function(module, self.name)
        barred = _take_out_of_barriers(main)
        carried = _sink_into_loops(main)
        log.count("carried", carried)
        log.count("barred", barred + (_take_out_of_barriers(main) if carried else 0))
        log.unchanged = not any(log.statistics.values())


def _sink_into_loops(scope: ir.Operation) -> int:
    sunk = 0
    # A loop is made anew, and those in it move: they are looked for only then.
    for block in (block for region in scope.regions for block in region):
        for op in [inner.operation for inner in block]:
            carried = _carried(op) if op.name == _LOOP else {}
            sunk += len(carried) + _sink_into_loops(_without(op, carried) if carried else op)
    return sunk


def _carried(loop: ir.Operation) -> dict[int, list[ir.Operation]]:
    """What a loop carries unchanged that follows from constants: by position the operations that make it."""
    bodies = [region.blocks[0] for region in loop.regions]
    end = bodies[1].operations[len(bodies[1].operations) - 1].operation
    found = {}
    for i, value in enumerate(loop.operands):
        given = [body.arguments[i] for body in bodies]
        if end.operands[i] == given[1] and not any(map(_from_memory, given)) and (made := _makers(value)):
            found[i] = made
    return found


def _without(loop: ir.Operation, carried: dict[int, list[ir.Operation]]) -> ir.Operation:
    """The loop in which these are made instead of carried."""
    for region in loop.regions:
        block = region.blocks[0]
        copied: dict[Any, Any] = {}
        with ir.InsertionPoint.at_block_begin(block):
            for i, made in carried.items():
                if any(True for _ in block.arguments[i].uses):
                    functions.copy_all([op for op in made if op.results[0] not in copied], copied)
                    block.arguments[i].replace_all_uses_with(copied[loop.operands[i]])
    for i in carried:
        loop.results[i].replace_all_uses_with(loop.operands[i])
    return narrow(loop, list(carried))


def _take_out_of_barriers(main: ir.Operation) -> int:
    return sum(map(_take_out, [op for op in functions.walk(main) if op.name == _BARRIER]))


def _take_out(barrier: ir.Operation) -> int:
    """The barrier made anew without what follows from constants; how many that were."""
    free = [
        not _from_memory(result) and _makers(value) is not None
        for value, result in zip(barrier.operands, barrier.results, strict=True)
    ]
    if not any(free):
        return 0
    kept = [value for value, out in zip(barrier.operands, free, strict=True) if not out]
    with barrier.context, barrier.location, ir.InsertionPoint(barrier):
        new = ir.Operation.create(_BARRIER, results=[v.type for v in kept], operands=kept) if kept else None
    results = iter(new.results if new is not None else ())
    for value, result, out in zip(barrier.operands, barrier.results, free, strict=True):
        result.replace_all_uses_with(value if out else next(results))
    barrier.erase()
    return sum(free)


def _from_memory(value: Any) -> bool:
    """Whether something reads a value from memory that XLA does not make inside of it."""
    return any(use.owner.operation.name in _READS_MEMORY for use in value.uses)


def _makers(value: Any) -> list[ir.Operation] | None:
    """The operations that make a tensor of constants, each after those it reads; None if it is not made so."""
    if not isinstance(value.type, ir.RankedTensorType) or not value.type.rank:
        return None
    found: dict[Any, ir.Operation] = {}
    return list(found.values()) if _follow(value, found) else None


def _follow(value: Any, found: dict[Any, ir.Operation]) -> bool:
    if not isinstance(value, ir.OpResult):
        return False
    op = value.owner.operation
    if value in found:
        return True
    if op.name not in _CHEAP or len(found) >= _MOST or (op.name == "stablehlo.constant" and numbers_of(op) > _ELEMENTS):
        return False
    if not all(_follow(operand, found) for operand in op.operands):
        return False
    found[value] = op
    return True
