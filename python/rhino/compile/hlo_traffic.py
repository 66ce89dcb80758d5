"""What one instruction of XLA's optimized program moves and computes: of a fusion only what its results need.

Owns how far a fusion's results reach back into its operands, and which updates are in place. Knows no device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod

from rhino.compile.hlo import Computation, HloModule, Instruction, called_computations
from rhino.program.element_types import dtype_bytes, element_type
from rhino.program.work import Work, operations, scattered

_SLICING = ("dynamic-slice", "slice", "gather")
_IN_PLACE = ("dynamic-update-slice", "scatter")
# They need as many elements of an operand as they make, at most.
_SHRINKING = frozenset(("broadcast", "pad", "dynamic-update-slice"))


def is_fusion(instruction: Instruction) -> bool:
    """Whether it is a fusion, or the start of one that XLA has run beside others."""
    return instruction.opcode in ("fusion", "fusion-start")


def work_of(module: HloModule, computation: Computation, instruction: Instruction) -> Work:
    """What one execution moves and computes."""
    operands = [computation.instructions[name] for name in instruction.operands]
    if is_fusion(instruction):
        inside = module.computations[called_computations(instruction)["calls"][0]]
        return _Fusion(inside).work(operands)
    if instruction.opcode in _SLICING:
        return Work(2.0 * _bytes(instruction))
    if instruction.opcode == "dynamic-update-slice":
        return Work(2.0 * _bytes(operands[1]))
    if instruction.opcode == "scatter":
        return Work(3.0 * _bytes(operands[2]), 0.0, 0.0, *_additions(operands))
    return Work(float(sum(map(_bytes, operands)) + _bytes(instruction)))


class _Fusion:
    """Of each instruction of a fusion, how many elements its results need; what is written and added to."""

    def __init__(self, inside: Computation) -> None:
        self.inside = inside.instructions
        self.needed: dict[str, float] = defaultdict(float)
        self.written = 0.0
        self.additions = (0.0, 0.0)
        root = self.inside[inside.root]
        self.results = root.operands if root.opcode == "tuple" else (root.name,)
        for name in self.results:
            self._result(name)
        # Readers come after what they read.
        for one in reversed(self.inside.values()):
            if one.opcode != "tuple" and self.needed[one.name]:
                self._operands(one, self.needed[one.name])

    def work(self, operands: Sequence[Instruction]) -> Work:
        """What it moves and computes, of these operands."""
        read = work = exponentials = 0.0
        for one in self.inside.values():
            count = self.needed[one.name]
            if one.opcode == "parameter":
                read += count * _bytes(operands[int(one.literal)]) / max(1, _elements(one))
            elif count:
                if one.opcode == "reduce":
                    count *= _elements(self.inside[one.operands[0]]) / max(1, _elements(one))
                integer = bool(one.result) and one.result[0].dtype[0] in "us"
                work += count * operations(one.opcode.replace("-", "_"), integer)
                exponentials += count if one.opcode == "exponential" else 0.0
        sums = sum(one.opcode == "reduce" and one.name not in self.results for one in self.inside.values())
        return Work(read + self.written, work, exponentials * sums**2, *self.additions)

    def _result(self, name: str) -> None:
        """What is written of a result: of what is updated in place, the update."""
        made = self._source(name)
        kept = self._source(made.operands[0]) if made.opcode in _IN_PLACE else None
        if kept is None or kept.opcode != "parameter":
            self.written += _bytes(self.inside[name])
            self.needed[name] = float(_elements(self.inside[name]))
            return
        operands = [self.inside[operand] for operand in made.operands]
        changed = operands[1]
        if made.opcode == "scatter":
            changed = operands[2]
            # What is added to is read, too.
            self.needed[kept.name] += _elements(changed)
            self.additions = _additions(operands)
        self.written += _bytes(changed)
        for operand in operands[1:]:
            self.needed[operand.name] = float(_elements(operand))

    def _source(self, name: str) -> Instruction:
        """What a value is a view of."""
        found = self.inside[name]
        while found.opcode == "bitcast":
            found = self.inside[found.operands[0]]
        return found

    def _operands(self, one: Instruction, count: float) -> None:
        """What an instruction needs for so many elements of its result."""
        for position, name in enumerate(one.operands):
            whole = float(_elements(self.inside[name]))
            if one.opcode in _SLICING:
                wanted = count if position == 0 else whole
            elif one.opcode in _SHRINKING:
                wanted = count
            else:
                wanted = whole * count / max(1, _elements(one))
            self.needed[name] = min(whole, self.needed[name] + wanted)


def _additions(operands: Sequence[Instruction]) -> tuple[float, float]:
    """Of a scatter's operands: what is added to, indices, and updates."""
    element = element_type(operands[2].result[0].dtype) or ""
    return scattered(_elements(operands[2]), dtype_bytes(element), "f" in element, _elements(operands[0]))


def _bytes(instruction: Instruction) -> int:
    return sum(t.size_bytes for t in instruction.result)


def _elements(instruction: Instruction) -> int:
    """Of its first result: others have as many."""
    return prod(instruction.result[0].shape) if instruction.result else 0
