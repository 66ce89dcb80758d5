"""Reads XLA's HLO text: computations, instructions, shapes, and which computations an instruction refers to.

Owns: the syntax of optimized HLO as `Compiled.as_text()` prints it, sync or async, on CPU and GPU.
Must not know: jax, MLIR, what a collective costs.
"""

from __future__ import annotations

import dataclasses
import math
import re

from rhino.program.element_types import dtype_bytes, element_type

_NO_DATA = ("token", "opaque")
_TENSOR = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=\s]*)\](\{[^{}]*\})?")
_HOSTED = "S(5)"  # the space of the host's memory, in a layout
_COMMENT = re.compile(r"/\*.*?\*/")
_DELIMITER = re.compile(r'[()"]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"%?([\w.\-]+)")
_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*\(.*\)\s*->\s*.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+)\s+=\s+(.*)$")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")


@dataclasses.dataclass(frozen=True, slots=True)
class HloTensor:
    """One array of an instruction's result; `hosted`: in the memory of the host."""

    dtype: str
    shape: tuple[int, ...]
    hosted: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes it occupies; types narrower than a byte are packed."""
        return -(-math.prod(self.shape) * _bits(self.dtype) // 8)

    @property
    def element_bytes(self) -> float:
        """Bytes of an element, less than 1 where several share one."""
        return _bits(self.dtype) / 8


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation.

    Attributes:
      result: its arrays, tuples flattened.
      operands: names of the instructions it reads, in the same computation.
      literal: the text between the parentheses: a constant's value, a parameter's number.
      attributes: what follows the operands, with the contents of strings removed.
      raw_attributes: the same with strings.
    """

    name: str
    opcode: str
    result: tuple[HloTensor, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str
    raw_attributes: str


@dataclasses.dataclass(frozen=True, slots=True)
class Computation:
    """A named list of instructions, in schedule order."""

    name: str
    instructions: dict[str, Instruction]
    root: str

    def operand_tensors(self, instruction: Instruction) -> tuple[HloTensor, ...]:
        """All arrays an instruction reads, tuples flattened."""
        return tuple(t for name in instruction.operands for t in self.instructions[name].result)


@dataclasses.dataclass(frozen=True, slots=True)
class HloModule:
    """A parsed module; `devices` is partitions x replicas."""

    computations: dict[str, Computation]
    entry: str
    partitions: int
    replicas: int

    @property
    def devices(self) -> int:
        """Number of devices that run it together."""
        return self.partitions * self.replicas


def parse_hlo(text: str) -> HloModule:
    """Parses the text of one HLO module.

    Raises:
      ValueError: no ENTRY computation, or a line of a computation that is not an instruction.
    """
    computations: dict[str, Computation] = {}
    entry = header = ""
    current: dict[str, Instruction] | None = None
    name = root = ""
    is_entry = False
    for line in text.splitlines():
        if line.startswith("HloModule"):
            header = line
        elif current is not None and line.rstrip() == "}":
            computations[name] = Computation(name, current, root)
            entry = name if is_entry else entry
            current = None
        elif current is not None:
            if (match := _INSTRUCTION.match(line)) is not None:
                instruction = _parse_instruction(match.group(2), match.group(3))
                current[instruction.name] = instruction
                root = instruction.name if match.group(1) else root
            elif line.strip():
                raise ValueError(f"not an HLO instruction: {line.strip()[:120]}")
        elif (match := _COMPUTATION.match(line)) is not None:
            is_entry, name, root, current = bool(match.group(1)), match.group(2), "", {}
    if not entry:
        raise ValueError("no ENTRY computation in the HLO text")
    return HloModule(
        computations, entry, _header_count(header, "num_partitions"), _header_count(header, "replica_count")
    )


def called_computations(instruction: Instruction) -> dict[str, list[str]]:
    """The computations an instruction refers to, by the attribute that names them."""
    called: dict[str, list[str]] = {}
    for key in ("calls", "to_apply", "body", "condition", "true_computation", "false_computation"):
        if (match := re.search(rf"\b{key}=%?([\w.\-]+)", instruction.attributes)) is not None:
            called[key] = [match.group(1)]
    for key in ("branch_computations", "called_computations", "calls"):
        if (match := re.search(rf"\b{key}=\{{([^}}]*)\}}", instruction.attributes)) is not None:
            called[key] = [_NAME.fullmatch(part.strip()).group(1) for part in match.group(1).split(",") if part.strip()]  # type: ignore[union-attr]
    return called


# --- lines ----------------------------------------------------------------------------------------------------------


def _parse_instruction(name: str, text: str) -> Instruction:
    text = _COMMENT.sub("", text)
    shape_end = _shape_end(text)
    match = _OPCODE.match(text, shape_end)
    if match is None:
        raise ValueError(f"not an HLO instruction: %{name} = {text[:120]}")
    close = _matching(text, match.end() - 1)
    inside, raw = text[match.end() : close], text[close + 1 :]
    operands = tuple(re.findall(r"%([\w.\-]+)", _STRING.sub('""', inside)))
    return Instruction(
        name=name,
        opcode=match.group(1),
        result=_tensors(text[:shape_end]),
        operands=operands,
        literal=inside.strip(),
        attributes=_STRING.sub('""', raw),
        raw_attributes=raw,
    )


def _shape_end(text: str) -> int:
    if text.startswith("("):
        return _matching(text, 0) + 1
    end = text.find(" ")
    return len(text) if end < 0 else end


def _matching(text: str, start: int) -> int:
    """The index of the parenthesis that closes the one at `start`; strings are skipped."""
    depth, i = 0, start
    while (found := _DELIMITER.search(text, i)) is not None:
        at = found.start()
        if text[at] == '"':
            string = _STRING.match(text, at)
            i = string.end() if string else len(text)
            continue
        depth += 1 if text[at] == "(" else -1
        if depth == 0:
            return at
        i = at + 1
    raise ValueError(f"unbalanced parentheses: {text[start : start + 120]}")


def _tensors(text: str) -> tuple[HloTensor, ...]:
    return tuple(
        HloTensor(dtype, tuple(int(d.strip().lstrip("<=")) for d in dims.split(",") if d.strip()), _HOSTED in layout)
        for dtype, dims, layout in _TENSOR.findall(text)
    )


def _bits(dtype: str) -> int:
    element = element_type(dtype)
    if element is None and dtype not in _NO_DATA:
        raise ValueError(f"unknown HLO element type {dtype}")
    return int(8 * dtype_bytes(element or ""))


def _header_count(header: str, key: str) -> int:
    match = re.search(rf"\b{key}=(\d+)", header)
    return int(match.group(1)) if match else 1
