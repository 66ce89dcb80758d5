"""Counts what a compiled program communicates: per collective kind and device group, how often and how many bytes.

Owns: `Collective`, `read_collectives`, the byte formulas. Must not know: jax, MLIR, link speeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from rhino.compile.hlo import Computation, HloModule, Instruction, called_computations, parse_hlo
from rhino.compile.hlo_groups import Groups, replica_groups, source_target_pairs
from rhino.compile.hlo_loops import trip_count
from rhino.program.disjoint import DisjointSets
from rhino.program.element_types import element_type
from rhino.program.operations import COLLECTIVES

KINDS = (*COLLECTIVES, "collective-broadcast", "ragged-all-to-all")


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """All executions of one kind of collective over one set of groups and one element type.

    Attributes:
      kind: one of `KINDS`.
      count: executions in one run of the program; an op that combines several tensors counts once.
      bytes: what one device sends in all of them, by the formulas of `sent_bytes`.
      group_size: devices that communicate with each other (of the largest group).
      groups: the groups, as positions in the device assignment.
      dtype: element type in MLIR's spelling; several, joined by "+", if an op combines them.
      in_unknown_loop: it is in a loop whose trip count cannot be read, and was counted for one iteration.
    """

    kind: str
    count: int
    bytes: int
    group_size: int
    groups: Groups
    dtype: str
    in_unknown_loop: bool = False

    def to_json(self) -> dict[str, Any]:
        """The fixed keys of `rhino compile --json`, and the element type and groups."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """One collective instruction: where it is, how often it runs, what one device sends in one execution."""

    name: str
    kind: str
    executions: int
    sent_bytes: int
    groups: Groups
    dtype: str
    in_unknown_loop: bool

    @property
    def full_bytes(self) -> int:
        """Bytes of the full tensor, of which `sent_bytes` are sent by ring formulas; of a permute its operand."""
        n = max(map(len, self.groups))
        if self.kind == "all-reduce":
            return self.sent_bytes * n // (2 * (n - 1))
        if self.kind in ("all-gather", "reduce-scatter"):
            return self.sent_bytes * n // (n - 1)
        return self.sent_bytes * n * n // (n - 1) if "all-to-all" in self.kind else self.sent_bytes


def read_collectives(hlo_text: str) -> tuple[Collective, ...]:
    """The collectives of an optimized HLO module, merged by kind, groups and element type, in a fixed order.

    Groups of one device do not communicate and are left out.
    """
    merged: dict[tuple[Any, ...], tuple[int, int]] = {}
    for site in read_sites(hlo_text):
        key = (site.kind, site.groups, site.dtype, site.in_unknown_loop)
        count, sent = merged.get(key, (0, 0))
        merged[key] = (count + site.executions, sent + site.executions * site.sent_bytes)
    rows = [
        Collective(kind, count, sent, max(map(len, groups)), groups, dtype, unknown)
        for (kind, groups, dtype, unknown), (count, sent) in merged.items()
    ]
    return tuple(sorted(rows, key=lambda row: (KINDS.index(row.kind), row.group_size, row.groups, row.dtype)))


def read_sites(hlo_text: str) -> tuple[Site, ...]:
    """Every collective instruction that runs, in program order; one called twice appears twice."""
    module = parse_hlo(hlo_text)
    return tuple(_walk(module, module.computations[module.entry], executions=1, unknown=False))


def collective_bytes(collectives: Iterable[Collective]) -> dict[str, int]:
    """Bytes one device sends, by kind; kinds that do not occur are left out."""
    return _totals((c.kind, c.bytes) for c in collectives)


def collective_counts(collectives: Iterable[Collective]) -> dict[str, int]:
    """Executions by kind; kinds that do not occur are left out."""
    return _totals((c.kind, c.count) for c in collectives)


def sent_bytes(kind: str, operand_bytes: int, group_size: int) -> int:
    """Bytes one device sends in one execution, by the ring formulas of the cost model.

    With V bytes in the full tensor and n devices in a group: all-gather and reduce-scatter V(n-1)/n, all-reduce
    2V(n-1)/n, all-to-all V(n-1)/n^2, collective-permute its operand. HLO shows what one device passes in, from
    which V follows: the operand is V for all-reduce and reduce-scatter, V/n for all-gather and all-to-all. A
    broadcast counts its operand; a ragged all-to-all counts as a full one.
    """
    n = group_size
    if n < 2:
        return 0
    if kind == "all-reduce":
        return 2 * operand_bytes * (n - 1) // n
    if kind == "all-gather":
        return operand_bytes * (n - 1)
    if kind in ("reduce-scatter", "all-to-all", "ragged-all-to-all"):
        return operand_bytes * (n - 1) // n
    return operand_bytes


def _walk(module: HloModule, computation: Computation, executions: int, unknown: bool) -> Iterator[Site]:
    for instruction in computation.instructions.values():
        if (kind := _kind(instruction)) is not None:
            site = _site(module, computation, instruction, kind, executions, unknown)
            if site is not None:
                yield site
            continue
        called = called_computations(instruction)
        if instruction.opcode == "while":
            trips = trip_count(module, computation, instruction)
            yield from _walk(
                module,
                module.computations[called["body"][0]],
                executions * (1 if trips is None else trips),
                unknown or trips is None,
            )
        elif instruction.opcode == "conditional":
            yield from _dearest_branch(module, called, executions, unknown)
        elif not instruction.opcode.endswith(("-done", "-update")):  # their start has counted it
            for name in _run_once(instruction, called):
                yield from _walk(module, module.computations[name], executions, unknown)


def _run_once(instruction: Instruction, called: dict[str, list[str]]) -> list[str]:
    """The computations an instruction runs: of fusions, calls and async ops, not what a reduction applies."""
    keys = ["calls", "called_computations", *(["to_apply"] if instruction.opcode.startswith("call") else [])]
    return [name for key in keys for name in called.get(key, [])]


def _dearest_branch(module: HloModule, called: dict[str, list[str]], executions: int, unknown: bool) -> Iterator[Site]:
    """Only one branch runs; the one that sends most stands for all, so the sum is an upper bound."""
    branches = [
        list(_walk(module, module.computations[name], executions, unknown))
        for names in called.values()
        for name in names
    ]
    yield from max(branches, key=lambda sites: sum(s.executions * s.sent_bytes for s in sites), default=[])


def site_of(module: HloModule, computation: Computation, instruction: Instruction) -> Site | None:
    """One execution of an instruction as a collective; None if it is none, or of groups of one device."""
    kind = _kind(instruction)
    return _site(module, computation, instruction, kind, 1, False) if kind is not None else None


def _kind(instruction: Instruction) -> str | None:
    kind = instruction.opcode.removesuffix("-start")
    if kind in KINDS:
        return kind
    # A pipelined collective-permute is a pair of send and recv that carries the pairs along.
    if instruction.opcode == "send" and source_target_pairs(instruction) is not None:
        return "collective-permute"
    return None


def _site(
    module: HloModule, computation: Computation, instruction: Instruction, kind: str, executions: int, unknown: bool
) -> Site | None:
    operands = [t for t in computation.operand_tensors(instruction) if t.dtype != "token"]
    if kind == "ragged-all-to-all":
        operands = operands[:1]  # the others say where the pieces go
    size = sum(t.size_bytes for t in operands)
    if kind == "collective-permute":
        pairs = source_target_pairs(instruction) or ()
        groups = _connected([(a, b) for a, b in pairs if a != b])
    else:
        groups = replica_groups(instruction, module)
    group_size = max(map(len, groups), default=1)
    if group_size < 2 or executions == 0:
        return None
    return Site(
        name=instruction.name,
        kind=kind,
        executions=executions,
        sent_bytes=sent_bytes(kind, size, group_size),
        groups=groups,
        dtype="+".join(dict.fromkeys(element_type(t.dtype) or t.dtype for t in operands)),
        in_unknown_loop=unknown,
    )


def _connected(pairs: list[tuple[int, int]]) -> Groups:
    """The sets of devices that pairs connect, each sorted, in order of their first device."""
    devices = sorted({device for pair in pairs for device in pair})
    sets = DisjointSets(devices[-1] + 1 if devices else 0)
    for a, b in pairs:
        sets.join(a, b)
    groups: dict[int, list[int]] = {}
    for device in devices:
        groups.setdefault(sets.find(device), []).append(device)
    return tuple(tuple(group) for group in groups.values())


def _totals(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind, amount in pairs:
        found[kind] = found.get(kind, 0) + amount
    return {kind: found[kind] for kind in KINDS if kind in found}
