"""The step cut into micro-batches, for the joint search: `SplitPrograms` makes and remembers what it asks for.

Owns how often loops over layers and the batch are cut. Plans nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, log2
from typing import Any

from jaxlib.mlir import ir

from rhino.deadline import NEVER, Clock, Deadline
from rhino.dialect import functions
from rhino.dialect.attributes import RhinoMicrobatches
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.microbatch.accumulate import accumulate_in_loops
from rhino.ir.microbatch.accumulation import NoAccumulation
from rhino.ir.microbatch.adopt import adopt
from rhino.ir.microbatch.split import split_microbatch
from rhino.ir.scans.layers import split_scans
from rhino.microbatch import batch_size
from rhino.pipeline.search.sharded import Prepared, prepare
from rhino.program.data import Graph
from rhino.program.recomputation import Recomputation

# Loops over layers become as many, and more where stages could not be equal; at O2 one a layer of most models.
_PIECES = {"O1": 16, "O2": 48}
# Not more than so many times as many for the number of devices.
_MOST = 3
# Of the finest cuts of the batch, the coarser ones are tried if those are refused: examples may be routed in groups.
_ATTEMPTS = 5


def loop_pieces(level: str, devices: int, stages: int = 0) -> int:
    """How many loops a loop over layers becomes, so that equal stages end between two of them.

    They are a multiple of the `stages` that were asked for, of many twice as many, so that one with other work besides
    can have fewer layers; else of the odd part of the number of devices, which is that of the largest number of stages.
    """
    least = _PIECES[level]
    if stages:
        return stages * (2 if stages > least else ceil(least / stages))
    odd = devices // (devices & -devices)
    if least % odd == 0:
        return least
    count = odd * max(1, 2 ** ceil(log2(least / odd)))
    return count if count <= _MOST * least else least


@dataclass
class SplitPrograms:
    """The step cut into parts, made when asked for. `bytecode` is of the step with its loops over layers split.

    `own` is the number of micro-batches that the step has a loop over itself, 0 for none: it is cut as often then.
    `batch`: examples that can be told apart, 1 where they need each other, then `uncut` says why. `pieces`: what loops
    over layers are split into. `statistics`: as of rhino-split-microbatch. `cut` has the steps cut so far, as bytecode;
    the last took `cut_s` seconds of the `clock`.
    """

    bytecode: bytes
    batch: int
    pieces: int
    statistics: str = "batch"
    own: int = 0
    cut: dict[int, bytes] = field(default_factory=dict)
    known: dict[int, Prepared | None] = field(default_factory=dict)
    refused: dict[int, PassError] = field(default_factory=dict)
    uncut: PassError | None = None
    clock: Clock = NEVER.clock
    cut_s: float = 0.0
    again: Recomputation | None = None

    @classmethod
    def of(
        cls,
        module: ir.Module,
        level: str,
        statistics: str = "batch",
        microbatches: int = 0,
        deadline: Deadline = NEVER,
        pieces: int = 0,
    ) -> SplitPrograms:
        """Of a normalised module, which stays as it is. A step that no number of parts suits is one part.

        Args:
          microbatches: those asked for, 0 for any number: with more than one, a step must be cut.
          deadline: after which no coarser cut is tried for one that was refused.
          pieces: how many loops a loop over layers becomes; 0 for as many as the level has.

        Raises:
          PassError: the step has no batch, or cannot be cut into micro-batches; at the operation.
        """
        copy = parse_bytes(to_bytecode(module), make_context())
        main = functions.find(copy, "main")
        assert main is not None
        adopted = adopt(copy)
        # Of a loop that is not taken the reason is given, should the step be refused.
        reason = _not_adopted(main, adopted) if isinstance(adopted, NoAccumulation) else None
        pieces = pieces or _PIECES[level]
        split_scans(copy, pieces)
        main = functions.find(copy, "main")
        assert main is not None
        own = adopted if isinstance(adopted, int) else 0
        batch = own or count_examples(main)
        found = cls(to_bytecode(copy), batch, pieces, statistics, own, clock=deadline.clock)
        # What cannot be cut at all is refused here, at the operation; what cannot be cut so often, later and quietly.
        for parts in [n for n in range(batch, 1, -1) if batch % n == 0][:_ATTEMPTS] or [1]:
            if found.prepared(parts) is not None:
                return found
            if deadline.over():
                break
        # Of fewer, larger parts: the finer ones may only not have divided.
        uncut = reason or list(found.refused.values())[-1]
        if microbatches > 1 or found.prepared(1) is None:
            raise uncut
        return replace(found, batch=1, known={1: found.known[1]}, uncut=uncut)

    def with_way(self, bytecode: bytes, again: Recomputation) -> SplitPrograms:
        """The same of a step that computes something else again; it is not cut yet."""
        return replace(self, bytecode=bytecode, again=again, cut={}, known={}, refused={})

    @cached_property
    def uncut_graph(self) -> Graph:
        """The step with its loops over layers split, before it is cut."""
        return import_graph(parse_bytes(self.bytecode, make_context()))

    @property
    def example(self) -> Prepared:
        """The step cut as often as was tried first."""
        return next(p for p in self.known.values() if p is not None)

    def module(self, parts: int) -> ir.Module:
        """The step as a loop over so many parts."""
        if parts in self.cut:
            return parse_bytes(self.cut[parts], make_context())
        module = parse_bytes(self.bytecode, make_context())
        if not self.own:
            split_microbatch(module, parts, self.statistics, self.uncut_graph)
        elif parts != self.own:
            raise own_loop_error(module, self.own, parts)
        accumulate_in_loops(module)
        self.cut[parts] = to_bytecode(module)
        return module

    def bytecode_of(self, parts: int) -> bytes:
        """The step as a loop over so many parts, to be written."""
        if parts not in self.cut:
            self.module(parts)
        return self.cut[parts]

    def graph(self, parts: int) -> Graph | None:
        """The same as data; None if the step cannot be cut so, for the reason in `refused`."""
        try:
            return import_graph(self.module(parts))
        except PassError as error:
            self.refused[parts] = error
            return None

    def prepared(self, parts: int) -> Prepared | None:
        """The same, read for the search and remembered."""
        if parts not in self.known:
            if not self.own:
                _ = self.uncut_graph  # the same before every cut, and read once: no part of what a further one takes
            begin = self.clock()
            graph = self.graph(parts)
            self.known[parts] = None
            if graph is not None:
                self.known[parts] = prepare(graph)
                self.cut_s = self.clock() - begin
        return self.known[parts]

    def is_cut(self, parts: int) -> bool:
        """Whether it was cut so already."""
        return parts in self.cut

    def refusal(self, parts: int) -> RhinoError | None:
        """Why it cannot be cut so."""
        return self.refused.get(parts)


def _not_adopted(main: Any, found: NoAccumulation) -> PassError:
    return PassError(number_program(main)[1][found.op], found.message, [found.remedy])


def own_loop_error(module: ir.Module, own: int, parts: int) -> PassError:
    """Why a step whose loop over micro-batches was adopted is not cut into another number of them."""
    loop = next(op for op in functions.walk(module.operation) if RhinoMicrobatches.name in op.attributes)
    message = f"the step has a loop over {own} micro-batches of its own, and is not cut into {parts}"
    return PassError(
        loop, message, [f"ask for {own} micro-batches of all replicas together, or leave their number open"]
    )


def count_examples(main: Any) -> int:
    """The number of examples in the batch arguments."""
    attributes = functions.argument_attributes(main)
    size = batch_size(
        list(a.type.shape)
        for a, given in zip(main.regions[0].blocks[0].arguments, attributes, strict=True)
        if "rhino.role" in given and given["rhino.role"].value == "batch"
    )
    one_program = "plan it as one program (stages=1)"
    if size < 0:
        classified = not attributes or any("rhino.role" in given for given in attributes)
        remedy = one_program if classified else "run rhino-classify-args, or give rhino.role"
        raise PassError(main, "no argument of the step is a batch, which micro-batches are cut from", [remedy])
    if not size:
        raise PassError(main, "the batch has no examples", [f"give some, or {one_program}"])
    return size


def statistics_of(module: ir.Module) -> str:
    """Of which examples sums are that examples need, as the loop over micro-batches says; "batch" without one."""
    main = functions.find(module, "main")
    assert main is not None
    found = [RhinoMicrobatches.of(op) for op in functions.walk(main) if RhinoMicrobatches.name in op.attributes]
    return str(found[0].get("statistics", "batch")) if found and found[0] else "batch"
