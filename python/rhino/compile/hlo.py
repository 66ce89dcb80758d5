"""Reads XLA's HLO text: computations, instructions, shapes, device groups and how often each computation runs.

Owns: the syntax of optimized HLO as `Compiled.as_text()` prints it, sync or async, on CPU and GPU.
Must not know: jax, MLIR, what a collective costs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re

Groups = tuple[tuple[int, ...], ...]

_BITS = {"pred": 8, "token": 0, "opaque": 0}
_NARROW_BITS = {"s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4}  # XLA packs these: two or four to a byte
_TENSOR = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=\s]*)\]")
_COMMENT = re.compile(r"/\*.*?\*/")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"%?([\w.\-]+)")
_COMPUTATION = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*\(.*\)\s*->\s*.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+)\s+=\s+(.*)$")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """One array of an instruction's result."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes it occupies; types narrower than a byte are packed."""
        return -(-math.prod(self.shape) * _bits(self.dtype) // 8)


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
    result: tuple[Tensor, ...]
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

    def operand_tensors(self, instruction: Instruction) -> tuple[Tensor, ...]:
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
    return HloModule(computations, entry, _header_count(header, "num_partitions"), _header_count(header, "replica_count"))


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


def trip_count(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """How often a `while` runs its body: what XLA wrote down, else what its counter says; None if neither tells."""
    if (known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.raw_attributes)) is not None:
        return int(known.group(1))
    return _counted_trips(module, caller, loop)


# --- device groups --------------------------------------------------------------------------------------------------


def replica_groups(instruction: Instruction, module: HloModule) -> Groups:
    """The groups of devices that communicate, in any of XLA's syntaxes; none written means all devices together.

    Ids are positions in the device assignment; the cross-replica-and-partition form is expanded to them.
    """
    text = instruction.attributes
    if (match := re.search(r"\breplica_groups=", text)) is None:
        return (tuple(range(module.devices)),)
    groups = parse_groups(text[match.end() :])
    if not groups:
        return (tuple(range(module.devices)),)
    if _groups_are_replicas(instruction) and module.partitions > 1:
        # One id stands for a replica; all its partitions take part. Device = replica * partitions + partition.
        return tuple(
            tuple(replica * module.partitions + part for replica in group for part in range(module.partitions))
            for group in groups
        )
    return groups


@functools.lru_cache(maxsize=4096)
def parse_groups(text: str) -> Groups:
    """Parses the value of `replica_groups=` at the start of `text`.

    `{{0,1},{2,3}}`, `[2,4]<=[8]`, `[4,2]<=[2,4]T(1,0)`, or
    `mesh['x'=2,'y'=4], device_ids=([2,4]T(1,0)) {'y'}` with sub-axes as `'y':(1)2`.
    """
    if text.startswith("mesh["):
        return _mesh_groups(text)
    if (iota := re.match(r"\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)) is not None:
        count, size, dims, order = iota.groups()
        ids = _iota(_ints(dims), _ints(order) if order else None)
        return tuple(tuple(ids[i * int(size) : (i + 1) * int(size)]) for i in range(int(count)))
    if (explicit := re.match(r"\{((?:\{[\d,\s]*\},?\s*)*)\}", text)) is not None:
        return tuple(_ints(group) for group in re.findall(r"\{([\d,\s]*)\}", explicit.group(1)) if group.strip())
    raise ValueError(f"unknown replica groups: {text[:80]}")


def source_target_pairs(instruction: Instruction) -> tuple[tuple[int, int], ...] | None:
    """The (sender, receiver) pairs of a collective-permute, or of a send that XLA made of one."""
    match = re.search(r"source_target_pairs=\"?(\{[\d,\s{}]*\})", instruction.raw_attributes)
    if match is None:
        return None
    return tuple((int(a), int(b)) for a, b in re.findall(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}", match.group(1)))


def _groups_are_replicas(instruction: Instruction) -> bool:
    kind = instruction.opcode.removesuffix("-start")
    if kind in ("all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast"):
        return "channel_id=" not in instruction.attributes
    return "use_global_device_ids=true" not in instruction.attributes


def _mesh_groups(text: str) -> Groups:
    match = re.match(r"mesh\[([^\]]*)\](?:,\s*device_ids=\(([^{]*)\))?\s*(?:\{([^}]*)\})?", text)
    if match is None:
        raise ValueError(f"unknown replica groups: {text[:80]}")
    axes = [(name, int(size)) for name, size in re.findall(r"'([^']*)'=(\d+)", match.group(1))]
    sizes = dict(axes)
    devices = _mesh_devices(match.group(2), math.prod(sizes.values()))
    used = {name: (1, size) for name, size in axes}
    if match.group(3) is not None:
        used = {
            name: (int(pre), int(size)) if size else (1, sizes[name])
            for name, pre, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", match.group(3))
        }
    # Each axis becomes (outside, used, inside) so that sub-axes are axes like any other.
    dims: list[int] = []
    moving: list[int] = []
    for name, size in axes:
        pre, part = used.get(name, (size, 1))
        dims += [pre, part, size // (pre * part)]
        moving.append(len(dims) - 2)
    order = [i for i in range(len(dims)) if i not in moving] + moving
    positions = _iota(tuple(dims), tuple(order))
    group = math.prod(dims[i] for i in moving)
    return tuple(tuple(devices[p] for p in positions[i : i + group]) for i in range(0, len(positions), group))


def _mesh_devices(text: str | None, count: int) -> list[int]:
    if not text:
        return list(range(count))
    if (iota := re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text.strip())) is not None:
        return _iota(_ints(iota.group(1)), _ints(iota.group(2)) if iota.group(2) else None)
    return list(_ints(text))


def _iota(dims: tuple[int, ...], order: tuple[int, ...] | None) -> list[int]:
    """0..n-1 shaped as `dims`, transposed by `order`, flattened."""
    order = order if order is not None else tuple(range(len(dims)))
    strides = [math.prod(dims[i + 1 :]) for i in range(len(dims))]
    ranges = [range(0, dims[i] * strides[i], strides[i]) for i in order]
    return [sum(index) for index in itertools.product(*ranges)]


# --- trip counts ----------------------------------------------------------------------------------------------------


def _counted_trips(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """The trips of `for (i = start; i < end; i += step)`, the form jax's loops have."""
    called = called_computations(loop)
    condition, body = module.computations[called["condition"][0]], module.computations[called["body"][0]]
    compare = _through_fusion(module, condition, condition.instructions[condition.root])
    if compare is None or compare[0].opcode != "compare" or (direction := _direction(compare[0])) is None:
        return None
    left, right = compare[1]
    index, end = _tuple_index(left), _constant(right)
    start = _constant(_element(caller, loop.operands[0], index)) if index is not None else None
    step = _step(body, index) if index is not None else None
    if start is None or end is None or step is None or step <= 0:
        return None
    span = end - start + (1 if direction == "LE" else 0)
    return max(0, -(-span // step))


def _through_fusion(
    module: HloModule, computation: Computation, root: Instruction
) -> tuple[Instruction, list[Instruction | None]] | None:
    """A condition's comparison and what it compares, looking into the fusion that may wrap it."""
    if root.opcode != "fusion":
        return root, [computation.instructions.get(name) for name in root.operands[:2]]
    inner = module.computations[called_computations(root)["calls"][0]]
    compare = inner.instructions[inner.root]
    sides: list[Instruction | None] = []
    for name in compare.operands[:2]:
        side = inner.instructions[name]
        if side.opcode == "parameter":
            side = computation.instructions[root.operands[int(side.literal)]]
        sides.append(side)
    return compare, sides


def _direction(compare: Instruction) -> str | None:
    match = re.search(r"direction=(LT|LE)", compare.attributes)
    return match.group(1) if match else None


def _tuple_index(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "get-tuple-element":
        return None
    match = re.search(r"\bindex=(\d+)", instruction.attributes)
    return int(match.group(1)) if match else None


def _element(computation: Computation, tuple_name: str, index: int) -> Instruction | None:
    made = computation.instructions.get(tuple_name)
    if made is None or made.opcode != "tuple":
        return None
    element = computation.instructions.get(made.operands[index])
    while element is not None and element.opcode in ("copy", "bitcast", "convert"):
        element = computation.instructions.get(element.operands[0])
    return element


def _constant(instruction: Instruction | None) -> int | None:
    if instruction is None or instruction.opcode != "constant":
        return None
    return int(instruction.literal) if re.fullmatch(r"-?\d+", instruction.literal) else None


def _step(body: Computation, index: int) -> int | None:
    add = _element(body, body.root, index)
    if add is None or add.opcode != "add":
        return None
    sides = [body.instructions[name] for name in add.operands]
    if not any(_tuple_index(side) == index for side in sides):
        return None
    return next((value for side in sides if (value := _constant(side)) is not None), None)


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
    while i < len(text):
        char = text[i]
        if char == '"':
            string = _STRING.match(text, i)
            i = string.end() if string else len(text)
            continue
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return i
        i += 1
    raise ValueError(f"unbalanced parentheses: {text[start : start + 120]}")


def _tensors(text: str) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(dtype, tuple(int(d.strip().lstrip("<=")) for d in dims.split(",") if d.strip()))
        for dtype, dims in _TENSOR.findall(text)
    )


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    if dtype in _NARROW_BITS:
        return _NARROW_BITS[dtype]
    match = re.match(r"[a-z]+(\d+)", dtype)
    if match is None:
        raise ValueError(f"unknown HLO element type {dtype}")
    return int(match.group(1))


def _header_count(header: str, key: str) -> int:
    match = re.search(rf"\b{key}=(\d+)", header)
    return int(match.group(1)) if match else 1


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())
