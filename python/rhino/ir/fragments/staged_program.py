"""Reading @main with a micro-batch loop and stages: its operations in order, what each reads, where each belongs.

Owns what cloning means: which operations belong to one stage, and which go into every fragment that reads them. Builds
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoMicrobatches, RhinoStage
from rhino.ir.collectives import KINDS
from rhino.ir.diagnostics import PassError
from rhino.program.operations import CONSTRAINTS, CONTRACTIONS, stablehlo

BEFORE, BODY, AFTER = range(3)
_PHASES = {BEFORE: ("prepare",), BODY: ("forward", "backward"), AFTER: ("update",)}
_ORDER = ("prepare", "forward", "backward", "update")
_REMEDY = "rhino-plan-stages gives operations their stage"
# Too dear to run in every fragment, or not the same each time.
_NEVER_CLONED = CONTRACTIONS | frozenset(KINDS) | stablehlo("rng sort infeed outfeed send recv")


@dataclass(frozen=True, slots=True)
class Home:
    """Where an operation runs."""

    phase: str
    stage: int


@dataclass(frozen=True, slots=True)
class StepInput:
    """An argument of the original step, or the part of it with [start, stop) per leading dimension, empty for all."""

    index: int
    slice: tuple[tuple[int, int], ...] = ()

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Its shape, of an argument with the shape `whole`."""
        return (*(stop - start for start, stop in self.slice), *whole[len(self.slice) :])


# What fragments read from outside: an argument, or a value: of an operation with a home, of the loop, or its counter.
Source: TypeAlias = "ir.Value | StepInput"


@dataclass(slots=True)
class StagedOp:
    """An operation of @main or of the loop's body. `reads` are values of @main or the body, nested uses too."""

    op: Any
    region: int
    reads: tuple[Any, ...]
    home: Home | None = None


@dataclass(slots=True)
class MicrobatchLoop:
    """The micro-batch loop; carry k has the same position in each list. The counter, first in the IR, is left out."""

    op: Any
    count: int
    counter: Any
    counter_result: Any
    initial: list[Any]
    arguments: list[Any]
    next: list[Any]
    results: list[Any]
    _positions: dict[Any, int] = field(default_factory=dict)

    def carry_of(self, source: Source) -> int | None:
        """Which carry a block argument of the body or a result of the loop belongs to."""
        if not self._positions:
            for values in (self.arguments, self.results):
                self._positions.update((value, k) for k, value in enumerate(values))
        return self._positions.get(source)

    def is_result(self, source: Source) -> bool:
        """Whether a value is a result of the loop (and not one in its body)."""
        carry = self.carry_of(source)
        return carry is not None and bool(self.results[carry] == source)


@dataclass(slots=True)
class StagedProgram:
    """The step as read. `outputs` has, per original result, its pieces: (value, its rows or an empty slice)."""

    main: Any
    loop: MicrobatchLoop
    nodes: list[StagedOp]
    producer: dict[Any, int]
    arguments: list[Any]
    alias: dict[Any, Source]
    outputs: list[list[tuple[Source, tuple[tuple[int, int], ...]]]] = field(default_factory=list)
    _roots: dict[Any, tuple[Source, ...]] = field(default_factory=dict)

    def source(self, value: Source) -> Source:
        """The value itself, or what it is another name of."""
        while value in self.alias:
            value = self.alias[value]
        return value

    def node_of(self, source: Source) -> StagedOp | None:
        """The operation that makes a value, None for arguments and what the loop carries."""
        index = self.producer.get(source)
        return None if index is None else self.nodes[index]

    def roots(self, value: Source) -> tuple[Source, ...]:
        """What must come from outside a fragment to have `value` in it, all clonable operations being cloned."""
        value = self.source(value)
        known = self._roots.get(value)
        if known is None:
            node = self.node_of(value)
            if node is not None and node.home is None:
                known = tuple(dict.fromkeys(root for read in node.reads for root in self.roots(read)))
            else:
                known = () if value == self.loop.counter_result else (value,)
            self._roots[value] = known
        return known

    def node_roots(self, node: StagedOp) -> tuple[Source, ...]:
        """What must come from outside for an operation, or from other operations with a home."""
        return tuple(dict.fromkeys(root for read in node.reads for root in self.roots(read)))

    def forget_roots(self) -> None:
        """Call when operations got a home."""
        self._roots.clear()

    def carry_home(self, position: int) -> Home:
        """The stage that updates a carry. Raises PassError if no operation with a stage does."""
        node = self.node_of(self.source(self.loop.next[position]))
        if node is None or node.home is None:
            what = "no operation of the loop" if node is None else f"'{node.op.name}', which has no rhino.stage"
            message = f"value {position + 1} that the micro-batch loop carries is made by {what}"
            where = self.loop.op if node is None else node.op
            raise PassError(where, message, ["what a loop carries is updated by an operation with a stage"])
        return node.home


def read_staged(main: Any) -> StagedProgram:
    """The step in @main. Raises PassError where it is not as rhino-split-microbatch and rhino-plan-stages leave it."""
    block = main.regions[0].blocks[0]
    loop_op = _find_loop(main, block)
    loop = _read_loop(loop_op)
    program = StagedProgram(main, loop, [], {}, list(block.arguments), {})
    homes: dict[Any, Home] = {}
    region = BEFORE
    for view in block.operations:
        op = view.operation
        if op == loop_op:
            for inner in loop_op.regions[1].blocks[0].operations:
                _add(program, inner.operation, BODY, homes)
            region = AFTER
        else:
            _add(program, op, region, homes)
    for i, argument in enumerate(program.arguments):
        program.alias[argument] = StepInput(i)
    for initial, carried, following, result in zip(loop.initial, loop.arguments, loop.next, loop.results, strict=True):
        if carried == following:  # every micro-batch hands it on as it is
            program.alias[carried] = program.alias[result] = initial
    returned = block.operations[len(block.operations) - 1]
    program.outputs = [[(program.source(value), ())] for value in returned.operation.operands]
    return program


def infer_homes(program: StagedProgram, live: Sequence[int]) -> None:
    """Give operations without a stage the one of the tensors they read; raise PassError at one that has no place."""
    for index in live:
        node = program.nodes[index]
        if node.home is None:
            node.home = _inferred_home(program, node)
    program.forget_roots()


def _find_loop(main: Any, block: Any) -> Any:
    loops = [v.operation for v in block.operations if RhinoMicrobatches.name in v.operation.attributes]
    if len(loops) != 1:
        have = "no micro-batch loop" if not loops else f"{len(loops)} micro-batch loops"
        where = main if not loops else loops[1]
        raise PassError(where, f"@main has {have}, but needs one", ["run rhino-split-microbatch{count=N} first"])
    return loops[0]


def _read_loop(op: Any) -> MicrobatchLoop:
    count = int(RhinoMicrobatches.from_attr(op.attributes[RhinoMicrobatches.name])["count"])
    body = op.regions[1].blocks[0]
    following = list(body.operations[len(body.operations) - 1].operation.operands)
    arguments, initial, results = list(body.arguments), list(op.operands), list(op.results)
    counter = ir.RankedTensorType(arguments[0].type) if arguments else None
    if counter is None or counter.rank or not isinstance(counter.element_type, ir.IntegerType):
        got = "it carries nothing" if counter is None else f"got '{counter}'"
        raise PassError(op, f"the first value of the micro-batch loop must be its counter, {got}")
    return MicrobatchLoop(op, count, arguments[0], results[0], initial[1:], arguments[1:], following[1:], results[1:])


def _add(program: StagedProgram, op: Any, region: int, homes: dict[Any, Home]) -> None:
    name: str = op.name
    if name in ("func.return", "stablehlo.return"):
        return
    if name in ("func.call", "call"):
        raise PassError(op, f"call to {op.attributes['callee']} is not inlined", ["run rhino-inline first"])
    home = None
    if RhinoStage.name in op.attributes:
        attribute = op.attributes[RhinoStage.name]
        if attribute not in homes:
            homes[attribute] = Home(**RhinoStage.from_attr(attribute))
        home = homes[attribute]
        if home.phase not in _PHASES[region]:
            places = {BEFORE: "before the micro-batch loop", BODY: "in the micro-batch loop", AFTER: "after it"}
            message = f"operation {places[region]} has phase '{home.phase}', not {' or '.join(_PHASES[region])}"
            raise PassError(op, message)
    for result in op.results:
        program.producer[result] = len(program.nodes)
    program.nodes.append(StagedOp(op, region, tuple(dict.fromkeys(outside_reads(op))), home))


def outside_reads(op: Any) -> Iterator[Any]:
    """The operands of an operation, and what the operations of its regions read from outside it."""
    yield from op.operands
    if len(op.regions):
        inner = {value for nested in functions.walk(op) for value in nested.results}
        inner.update(a for nested in (op, *functions.walk(op)) for r in nested.regions for b in r for a in b.arguments)
        for nested in functions.walk(op):
            yield from (value for value in nested.operands if value not in inner)


def _inferred_home(program: StagedProgram, node: StagedOp) -> Home | None:
    """Where an operation without a stage belongs: with the tensors it reads, or nowhere, to be cloned."""
    if node.op.name in CONSTRAINTS:
        # Right behind a result left open it says what the producer's layout is; others are one reader's wish.
        made_by = program.node_of(program.source(node.reads[0]))
        return made_by.home if made_by is not None and _left_open(made_by.op, node.reads[0]) else None
    homes = [home for home in (_tensor_home(program, root) for root in program.node_roots(node)) if home is not None]
    stages = list(dict.fromkeys(home.stage for home in homes))
    if len(stages) > 1:
        message = f"operation without rhino.stage reads tensors of stages {' and '.join(map(str, stages))}"
        raise PassError(node.op, message, [_REMEDY])
    if homes:
        return Home(max((h.phase for h in homes), key=_ORDER.index) if node.region == BODY else _PHASES[node.region][0],
                    stages[0])  # fmt: skip
    if node.op.name in _NEVER_CLONED or functions.has_side_effect(node.op):
        why = (
            "has a side effect"
            if functions.has_side_effect(node.op)
            else "is too dear to run in every fragment that reads it"
        )
        raise PassError(node.op, f"'{node.op.name}' has no rhino.stage and {why}", [_REMEDY])
    return None


def _tensor_home(program: StagedProgram, source: Source) -> Home | None:
    if isinstance(source, StepInput) or not ir.RankedTensorType(source.type).rank:
        return None
    carry = program.loop.carry_of(source)
    if carry is not None:  # inside the loop its stage follows from what reads it
        return program.carry_home(carry) if program.loop.is_result(source) else None
    node = program.node_of(source)
    return None if node is None else node.home


def _left_open(op: Any, value: Any) -> bool:
    sharding = sdy.results_of(op)[list(op.results).index(value)]
    return sharding is not None and len(sdy.closed_dims(sharding)) > 0 and not any(sdy.closed_dims(sharding))


def live_nodes(program: StagedProgram) -> tuple[list[int], list[int]]:
    """The operations and the carries that results depend on, in program order."""
    loop = program.loop
    nodes: set[int] = set()
    carries: set[int] = set()
    pending: list[Any] = [value for pieces in program.outputs for value, _ in pieces]
    for index, node in enumerate(program.nodes):
        if functions.has_side_effect(node.op):
            nodes.add(index)
            pending += node.reads
    while pending:
        source = program.source(pending.pop())
        carry = loop.carry_of(source)
        if carry is not None and carry not in carries:
            carries.add(carry)
            pending += [loop.initial[carry], loop.next[carry]]
        made_by = program.producer.get(source)
        if made_by is not None and made_by not in nodes:
            nodes.add(made_by)
            pending += program.nodes[made_by].reads
    return sorted(nodes), sorted(carries)
