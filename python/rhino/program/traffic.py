"""Bytes that a program's kernels move: each reads what it is made of once, and what several read is read several times.

Owns kernels of what is fused, as sets of what they read and write, and which of them are one. Knows no mesh and no
seconds: of each op it says its part, which a plan divides as it divides the op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rhino.program.costly import made_once
from rhino.program.data import Graph, Op
from rhino.program.fills import read_fills
from rhino.program.fusible import is_fusible
from rhino.program.fusion import materialised
from rhino.program.operations import CONSTRAINTS, CONTRACTIONS, stablehlo
from rhino.program.rows import keeps_order, memory_of, rows_inside, stacked_rows
from rhino.program.shared import shared
from rhino.program.work import Work, operations, scattered

_SLICING = stablehlo("slice dynamic_slice")
_REDUCE, _UPDATE = "stablehlo.reduce", "stablehlo.dynamic_update_slice"
# A value that only products read through so many reshapes is looked for no further.
_FAR = 4


@dataclass(frozen=True, slots=True)
class Traffic:
    """What each op has part in, of one execution, on one device that holds everything.

    Attributes:
      nbytes: bytes read and written. What a kernel reads is counted at the first of its ops that reads it, what it
        writes at the op that makes it.
      starts: whether the op is the last of a kernel. Scalars, such as the counters of loops, are made beside what
        reads them.
      kernels: what a kernel does in all, by its last op, where that is more than to move bytes.
    """

    nbytes: Sequence[float]
    starts: Sequence[bool]
    kernels: Mapping[int, Work]


@dataclass(frozen=True, slots=True)
class Fusing:
    """What a back end fuses besides what is element-wise.

    Attributes:
      rows_fused: kernels compute sums of their rows themselves. `XLA: rows-reduced-inside`
      costly_kept: what is costly is written, if several kernels read it and one sums. `XLA: costly-made-once`
      tanh_kept, wide_tanh_kept: an erfc and a tanh of 16 bits, or one of float32, is written if these kernels come one
        after the other. `XLA: tanh-kept, wide-tanh-kept`
      shared_kept: what many kernels read is written, if what it is made of is more. `XLA: shared-made-once`
      fills_read: a fill that is updated in place elsewhere is read from memory. `XLA: fills-read`
      siblings_merged: what goes over the same elements, and does not follow from each other's sums, is one kernel.
        `XLA: siblings-merged, sums-merged`
      products_fuse: but for what only products read, which their kernels may make. `XLA: dots-read-memory`
      products_wide: what products read and make of bfloat16 is float32. `XLA: dots-widened`
      worked: whether operations are counted, too, where the device tells what they take.
    """

    rows_fused: bool = False
    costly_kept: bool = False
    tanh_kept: bool = False
    wide_tanh_kept: bool = False
    shared_kept: bool = False
    fills_read: bool = False
    siblings_merged: bool = False
    products_fuse: bool = False
    products_wide: bool = False
    worked: bool = False


def traffic(graph: Graph, fusing: Fusing) -> Traffic:
    """The traffic of a program, in a time that is linear in the sizes of its kernels.

    A value that gets memory of its own (`fusion.materialised`) is written by a kernel, which reads all values in memory
    that it is made of. What is fused is made again by each kernel (`XLA: elementwise-made-again`).
    """
    return _Counting(graph, fusing).run()


@dataclass(slots=True)
class _Kernel:
    """One kernel, over so many `elements` of a region, 0 where nothing else may join it.

    Attributes:
      level: greater than that of all it depends on.
      is_read: whether something depends on it.
      reads: per value in memory the first op that reads it, and how many bytes.
      writes: per value its maker, and how many bytes.
      ops: what it computes, in an order.
    """

    elements: int
    region: int
    level: int
    is_read: bool = False
    last: int = -1
    reads: dict[int, tuple[int, float]] = field(default_factory=dict)
    writes: dict[int, tuple[int, float]] = field(default_factory=dict)
    ops: dict[int, None] = field(default_factory=dict)

    def nbytes(self) -> float:
        """Bytes read and written."""
        read = sum(nbytes for v, (_, nbytes) in self.reads.items() if v not in self.writes)
        return read + sum(nbytes for _, nbytes in self.writes.values())


class _Counting:
    """One pass over the ops in program order."""

    def __init__(self, graph: Graph, fusing: Fusing) -> None:
        self.graph = graph
        self.real = list(materialised(graph))
        for v, _ in made_once(graph, fusing.tanh_kept, fusing.wide_tanh_kept, fusing.costly_kept):
            self.real[v] = True
        self.inside = rows_inside(graph, self.real) if fusing.rows_fused else frozenset()
        if stacked := stacked_rows(graph, self.real, self.inside):
            for v in stacked:
                self.real[v] = True
            self.inside = rows_inside(graph, self.real)
        for v in shared(graph, self.real, self.inside) if fusing.shared_kept else ():
            self.real[v] = True
        fills = read_fills(graph, self.real) if fusing.fills_read else {}
        for v in fills:
            self.real[v] = True
        self.fusing = fusing
        self.wide = _wide(graph, self.real) if fusing.products_wide else frozenset()
        self.users = graph.users() if fusing.products_fuse else []
        self.returned = set(graph.outputs)
        # Each value in memory under the name of the first that is the same memory.
        self.memory = list(range(len(graph.values)))
        for v, first in fills.items():
            self.memory[v] = first
        self.kernels: list[_Kernel] = []
        self.maker: dict[int, _Kernel] = {}
        self.reader: dict[int, _Kernel] = {}
        self.levels: dict[int, int] = {}

    def run(self) -> Traffic:
        nbytes = [0.0] * len(self.graph.ops)
        starts = [False] * len(self.graph.ops)
        worked: dict[int, Work] = {}
        for op in self.graph.ops:
            scalar = all(self.graph.values[v].elements <= 1 for v in op.results)
            if scalar and _is_made(op) and op.name != _REDUCE:
                self._follow(op, 0)
                continue
            if not any(self.real[v] for v in op.results) or any(self.memory[v] != v for v in op.results):
                continue
            if self._is_view(op):
                self.memory[op.results[0]] = self.memory[op.operands[0]]
            elif _is_made(op):
                if op.results[0] not in self.inside:
                    self._kernel(op)
            else:
                nbytes[op.index] = apart_bytes(self.graph, op, self.real)
                starts[op.index] = nbytes[op.index] > 0
                if self.fusing.worked and op.name == "stablehlo.scatter" and op.tag == "add":
                    worked[op.index] = self._scattered(op, nbytes[op.index])
                self._follow(op, 1)
        for kernel in self.kernels:
            for maker, written in kernel.writes.values():
                nbytes[maker] += written
            for v, (reader, read) in kernel.reads.items():
                if v not in kernel.writes:
                    nbytes[reader] += read
            starts[kernel.last] = True
            if self.fusing.worked:
                worked[kernel.last] = self._worked(kernel)
        return Traffic(nbytes, starts, worked)

    # --- what there is ----------------------------------------------------------------------------------------------

    def _is_view(self, op: Op) -> bool:
        """Whether an op's result is memory that is there."""
        return bool(op.operands) and self._in_memory(op.operands[0]) and (
            op.name in CONSTRAINTS or keeps_order(self.graph, op)
        )  # fmt: skip

    def _nbytes(self, v: int) -> float:
        """Bytes of a value as it is in memory."""
        return float(self.graph.values[v].nbytes * (2 if v in self.wide else 1))

    def _in_memory(self, v: int) -> bool:
        return (self.real[v] and v not in self.inside) or self.graph.values[v].producer < 0

    def _reads(
        self, op: Op, starts: Sequence[int], ops: dict[int, None] | None = None
    ) -> tuple[dict[int, tuple[int, float]], list[int]]:
        """What a kernel that ends in an op reads, by value: the first op that does, and bytes; and its scalars.

        What it computes is added to `ops`.
        """
        values, makers = self.graph.values, self.graph.ops
        readers: dict[int, dict[int, int]] = {}
        scalars: dict[int, None] = {}
        queue = [(op, v) for v in starts]
        seen: set[int] = set()
        for reader, v in queue:
            value = values[v]
            if value.elements <= 1:
                scalars[v] = None
            elif self._in_memory(v):
                part = values[reader.results[0]].nbytes if reader.name in _SLICING else value.nbytes
                readers.setdefault(self.memory[v], {})[reader.index] = part * (2 if self.memory[v] in self.wide else 1)
            elif v not in seen:
                seen.add(v)
                maker = makers[value.producer]
                if ops is not None:
                    ops[maker.index] = None
                queue.extend((maker, u) for u in maker.operands)
        reads = {v: (min(parts), min(self._nbytes(v), float(sum(parts.values())))) for v, parts in readers.items()}
        return reads, list(scalars)

    # --- kernels ----------------------------------------------------------------------------------------------------

    def _kernel(self, op: Op) -> None:
        """What is made of others and written: a kernel of its own, or one more result of an earlier one."""
        values = self.graph.values
        starts, made = op.operands, op.results
        written = {v: (self._writer(op), self._nbytes(v)) for v in made if self.real[v]}
        elements = values[op.operands[0] if op.name == _REDUCE else made[0]].elements if op.operands else 0
        if op.name == _UPDATE:
            starts, update = op.operands[1:2], values[op.operands[1]]
            written, elements = {made[0]: (op.index, float(update.nbytes))}, update.elements
        computed: dict[int, None] = {op.index: None}
        reads, scalars = self._reads(op, starts, computed)
        # What is updated in place is no other kernel's, too, nor what is made of rows reduced inside. XLA: rows-alone
        alone = (
            not self.fusing.siblings_merged
            or op.name == _UPDATE
            or (bool(self.inside) and any(self.graph.ops[o].results[0] in self.inside for o in computed))
            or (self.fusing.products_fuse and op.name != _REDUCE and self._only_multiplied(made[0]))
        )
        kernel = None if alone else self._sibling(op, elements, reads, scalars)
        if kernel is None:
            kernel = _Kernel(0 if alone else elements, op.parent, 1 + self._level((*reads, *scalars), op.parent))
            self.kernels.append(kernel)
        for v, (reader, nbytes) in reads.items():
            known = kernel.reads.get(v, (reader, 0.0))
            kernel.reads[v] = (known[0], max(known[1], nbytes))
            self.reader[v] = kernel
        self._mark((*reads, *scalars), kernel)
        kernel.writes.update(written)
        kernel.ops.update(computed)
        kernel.last = op.index
        for v in made:
            self.maker[v] = kernel

    def _worked(self, kernel: _Kernel) -> Work:
        """What a kernel does."""
        values, count, exponentials, sums = self.graph.values, 0.0, 0.0, 0
        for index in kernel.ops:
            op = self.graph.ops[index]
            made = values[op.results[0]]
            elements = values[op.operands[0]].elements if op.name == _REDUCE else made.elements
            name = op.name.rpartition(".")[2]
            count += elements * operations(op.tag if op.name == _REDUCE else name, made.dtype[0] in "iu")
            exponentials += elements if name == "exponential" else 0
            sums += op.results[0] in self.inside
        return Work(kernel.nbytes(), count, exponentials * sums**2)

    def _scattered(self, op: Op, nbytes: float) -> Work:
        """What a scatter does that adds."""
        target, updates = (self.graph.values[op.operands[i]] for i in (0, 2))
        bytes_each = updates.nbytes / max(1, updates.elements)
        return Work(nbytes, 0.0, 0.0, *scattered(updates.elements, bytes_each, "f" in updates.dtype, target.elements))

    def _writer(self, op: Op) -> int:
        """The op that a plan divides as it divides what is written: who makes what a constraint only lays out."""
        while op.name in CONSTRAINTS and self.graph.values[op.operands[0]].producer >= 0:
            op = self.graph.ops[self.graph.values[op.operands[0]].producer]
        return op.index

    def _sibling(self, op: Op, elements: int, reads: Iterable[int], scalars: Sequence[int]) -> _Kernel | None:
        """An earlier kernel that makes or reads the same, over as many elements, and that an op may join."""
        values = self.graph.values
        for v in reads:
            if 2 * values[v].elements < elements:
                continue
            for found in (self.maker.get(v), self.reader.get(v)):
                if found is None or found.elements != elements or found.region != op.parent:
                    continue
                needs = (*reads, *scalars)
                # A sum is known when its kernel ends.
                if any(self.maker.get(u) is found and values[u].elements < elements for u in needs):
                    continue
                level = self._level((u for u in needs if self.maker.get(u) is not found), op.parent)
                if level < found.level or not found.is_read:
                    found.level = max(found.level, level + 1)
                    return found
        return None

    def _only_multiplied(self, v: int, far: int = _FAR) -> bool:
        """Whether nothing but products reads a value."""
        if v in self.returned or not self.users[v]:
            return False
        readers = (self.graph.ops[o] for o in self.users[v])
        return all(
            op.name in CONTRACTIONS
            or (far > 0 and keeps_order(self.graph, op) and self._only_multiplied(op.results[0], far - 1))
            for op in readers
        )

    # --- what follows from what -------------------------------------------------------------------------------------

    def _level(self, reads: Iterable[int], region: int) -> int:
        """The highest level of some values in memory; what comes from around a region is there before it."""
        found = 0
        for v in reads:
            kernel = self.maker.get(v)
            level = self.levels.get(v, 0) if kernel is None else kernel.level if kernel.region == region else 0
            found = max(found, level)
        return found

    def _mark(self, reads: Iterable[int], by: _Kernel | None) -> None:
        """Something depends on the makers of what it reads, which cannot wait for others any more."""
        for v in reads:
            maker = self.maker.get(v)
            if maker is not None and maker is not by:
                maker.is_read = True

    def _follow(self, op: Op, steps: int) -> None:
        """What is no such kernel, a product or a scalar for instance, follows from all that it reads."""
        reads, scalars = self._reads(op, op.operands)
        self._mark((*reads, *scalars), None)
        level = steps + self._level((*reads, *scalars), op.parent)
        for v in op.results:
            self.levels[v] = level


def _wide(graph: Graph, real: Sequence[bool]) -> frozenset[int]:
    """The bfloat16 values in memory that products read or make, but for weights, which they read as they are kept."""
    found = set()
    for op in graph.ops:
        for v in (*op.operands, *op.results) if op.name in CONTRACTIONS else ():
            v = memory_of(graph, real, v)
            maker = graph.producer(v)
            if graph.values[v].dtype == "bf16" and maker is not None and maker.name != "stablehlo.convert":
                found.add(v)
    return frozenset(found)


def _is_made(op: Op) -> bool:
    """Whether an op is part of kernels that fusion makes."""
    if op.ties or op.manual is not None or op.name == "stablehlo.constant":
        return False
    return is_fusible(op) or op.name in CONSTRAINTS or op.name in (_REDUCE, _UPDATE)


def apart_bytes(graph: Graph, op: Op, real: Sequence[bool]) -> float:
    """Bytes of one execution of an op that is in no fusion: a product, a kernel, a lookup."""
    values = graph.values
    if op.kernel is not None:
        return float(op.kernel.nbytes)
    if op.ties or op.name == "stablehlo.constant":
        return 0.0
    if op.name == "stablehlo.gather":
        return 2.0 * sum(values[v].nbytes for v in op.results)
    if op.name == "stablehlo.scatter":
        return 3.0 * sum(values[v].nbytes for v in op.operands[2:])
    read = dict.fromkeys(v for v in op.operands if real[v])
    return float(sum(values[v].nbytes for v in (*op.results, *read) if real[v]))
