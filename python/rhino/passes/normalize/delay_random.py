"""The pass rhino-delay-random: random bits are made when they are needed, not for all layers at once.

Owns which bits those are and what they wait for. Knows neither mesh nor costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.functions import walk
from rhino.passes.registry import Pass, PassLog, option, register
from rhino.program.operations import CONTRACTIONS, SOURCES

_MIXES = "stablehlo.xor"
# What is made again wherever it is read; a call or a loop is not looked through. XLA: elementwise-made-again
_MOVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "broadcast_in_dim", "reshape", "convert", "bitcast_convert", "slice", "concatenate", "transpose", "add",
        "subtract", "multiply", "divide", "maximum", "minimum", "and", "or", "xor", "not", "negate", "shift_left",
        "shift_right_logical", "compare", "select", "log", "log_plus_one", "sqrt", "abs", "clamp", "floor",
    )
)  # fmt: skip


@register
class DelayRandom(Pass):
    """Make the random bits of each layer wait for what the layer reads, instead of all at the start.

    The bits of a dropout depend on its key alone, and XLA makes those of all unrolled layers, alike as they are, in one
    kernel before the first of them: with 20 layers of attention under `jax.checkpoint` they were a third of all memory.
    Here the key goes through a `stablehlo.optimization_barrier` beside the operand of the product before the dropout.
    Bits that wait for something already, as those made again for a gradient do, stay as they are.

    Requires: no calls.

    Ensures: the same values. Of several elementwise results without a product among their operands, made by `xor` from
    small values that are not constant, and used with what a product made, each waits for that product's operand.

    Example:
      ```mlir
      %1 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      %2 = call @bits(%key)
      // becomes
      %0:2 = stablehlo.optimization_barrier %x, %key
      %1 = stablehlo.dot_general %0#0, %w, contracting_dims = [1] x [0]
      %2 = call @bits(%0#1)
      ```
    """

    name: ClassVar[str] = "rhino-delay-random"

    least: int = option(1048576, "elements; what has fewer is left alone")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite every block of the module."""
        # Random bits are mixed: most blocks have none.
        mixed = [op for op in walk(module.operation) if op.name == _MIXES and _large(op.results[0], self.least)]
        blocks = dict.fromkeys(op.block for op in mixed)
        delayed = sum(_Block(block, self.least).delay() for block in blocks)
        log.count("delayed", delayed)
        log.unchanged = not delayed


class _Block:
    """One block: its operations in order, and what is known of the values they make."""

    def __init__(self, block: ir.Block, least: int) -> None:
        self.least = least
        self.ops = [view.operation for view in block.operations]
        self.at: dict[Any, int] = {}
        # Per value: the last product it depends on, whether it is made of constants alone.
        self.product: dict[Any, int] = {}
        self.constant: set[Any] = set()
        # Large ones made of small ones alone, and those of them that are mixed.
        self.seeded: set[Any] = set()
        self.random: set[Any] = set()
        # What waits already: behind a barrier that holds something large.
        self.waiting: set[Any] = set()

    def delay(self) -> int:
        """How many tensors of random bits wait now."""
        self.at.update((result, i) for i, op in enumerate(self.ops) for result in op.results)
        found: dict[Any, int] = {}
        for i, op in enumerate(self.ops):
            self._read(i, op)
            if op.name not in _MOVES or not op.results or op.results[0] in self.seeded:
                continue
            after = max((self.product.get(v, -1) for v in op.operands), default=-1)
            if after >= 0:
                found.update({v: after for v in op.operands if v in self.random and v not in found})
        if len(found) < 2:
            return 0
        # The first product first: what a later one holds back may wait already.
        return sum(self._wait(bits, after) for bits, after in sorted(found.items(), key=lambda f: f[1]))

    def _read(self, i: int, op: ir.Operation) -> None:
        """What is known of an operation's results."""
        operands = list(op.operands)
        last = max((self.product.get(v, -1) for v in operands), default=-1)
        last = i if op.name in CONTRACTIONS else last
        held = op.name == "stablehlo.optimization_barrier" and any(map(self._large, operands))
        waiting = held or any(v in self.waiting for v in operands)
        constant = op.name in SOURCES or (bool(operands) and all(v in self.constant for v in operands))
        known = op.name in _MOVES and all(
            not self._large(v) or v in self.constant or v in self.seeded for v in operands
        )
        mixed = op.name == _MIXES or any(v in self.random for v in operands)
        for v in op.results:
            if last >= 0:
                self.product[v] = last
            if waiting:
                self.waiting.add(v)
            if constant:
                self.constant.add(v)
            elif known and last < 0 and not waiting and self._large(v):
                self.seeded.add(v)
                if mixed:
                    self.random.add(v)

    def _large(self, v: Any) -> bool:
        return _large(v, self.least)

    def _wait(self, bits: Any, after: int) -> bool:
        """Lets bits wait for what the product `after` reads. Whether it could: all of them come after it."""
        product = self.ops[after]
        slot = max((0, 1), key=lambda k: self.at.get(product.operands[k], -1))
        read = product.operands[slot]
        made = list(self._made(bits, after))
        keys = dict.fromkeys(
            v for op in made for v in op.operands if self.at.get(v, -1) < after and v not in self.constant and v != read
        )
        if not keys or self.at.get(read, -1) < 0 or any(map(self._large, keys)):
            return False
        with product.context, product.location, ir.InsertionPoint(product):
            held = stablehlo.OptimizationBarrierOp([read, *keys]).operation
        self.at.update((result, after - 1) for result in held.results)
        product.operands[slot] = held.results[0]
        late = dict(zip(keys, list(held.results)[1:], strict=True))
        for op in made:
            for k, v in enumerate(op.operands):
                if v in late:
                    op.operands[k] = late[v]
        return True

    def _made(self, bits: Any, after: int) -> Iterator[ir.Operation]:
        """The operations behind some bits that come after the product, one by one."""
        seen: set[int] = set()
        queue = [bits]
        for v in queue:
            i = self.at.get(v, -1)
            if i > after and i not in seen:
                seen.add(i)
                queue.extend(self.ops[i].operands)
                yield self.ops[i]


def _large(v: Any, least: int) -> bool:
    """Whether a value is a tensor of so many elements."""
    return isinstance(v.type, ir.RankedTensorType) and v.type.has_static_shape and prod(v.type.shape) >= least
