"""Reads which devices an HLO collective connects, in every syntax XLA prints.

Owns: `replica_groups` and `source_target_pairs`. Must not know: jax, MLIR, what a collective costs.
"""

from __future__ import annotations

import functools
import itertools
import math
import re

from rhino.compile.hlo import HloModule, Instruction

Groups = tuple[tuple[int, ...], ...]


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


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())
