"""Optimizer state in the memory of the host: which of a step's can be there, and the step with it there.

Owns the rewrite (docs/design/offload.md). Who has it done, and for how much of the state, is the planner's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoHosted
from rhino.dialect.memories import DEVICE, HOST, KIND, place
from rhino.ir.import_graph import import_graph, number_program
from rhino.program.data import Graph, Op
from rhino.program.disjoint import DisjointSets
from rhino.program.fusible import is_elementwise
from rhino.program.fusion import materialised, splats
from rhino.program.operations import NESTING, PLACEMENT
from rhino.program.operations import stablehlo as named

# A smaller tensor is not worth two copies, each of which waits for the other end.
LEAST_BYTES = 1 << 20
# What may have effects, or give something else each time, in its regions too.
_MAY_ACT = NESTING | named("custom_call rng infeed outfeed send recv")


@dataclass(frozen=True, slots=True)
class HostedUpdate:
    """An element-wise update whose state can be in the memory of the host between steps.

    Attributes:
      ops: what it computes, in program order.
      state: by argument of the optimizer its position, and that of the result that takes its buffer.
      waits: values that it reads and does not make.
      nbytes: of the state, undivided.
    """

    ops: tuple[int, ...]
    state: tuple[tuple[int, int], ...]
    waits: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What came of it: updates whose state the hosts keep, and how many arguments come from there before the step."""

    updates: tuple[HostedUpdate, ...]
    brought: int


def hosted_updates(graph: Graph) -> list[HostedUpdate]:
    """The updates whose state only they read and make, the largest first.

    State that is in the host's memory already stays there. Time is linear in ops.
    """
    state = {
        a.value: k
        for k, a in enumerate(graph.arguments)
        if a.role == "opt_state" and a.alias >= 0 and a.value not in graph.hosted
        if graph.values[a.value].nbytes >= LEAST_BYTES and a.value not in graph.stages
        if graph.outputs.count(graph.outputs[a.alias]) == 1
    }
    if not state:
        return []
    made, sets = _made_of(graph, state)
    groups: dict[int, list[int]] = {}
    for o in sorted(made):
        groups.setdefault(sets.find(graph.ops[o].results[0]), []).append(o)
    found = [update for ops in groups.values() if (update := _update(graph, state, ops)) is not None]
    stuck = _circular(graph, found)
    kept = [update for k, update in enumerate(found) if k not in stuck]
    return sorted(kept, key=lambda update: (-update.nbytes, update.ops))


def offload(module: ir.Module, count: int = -1) -> Offloaded:
    """Keeps the state of the largest updates in the memory of the host, in place; all of them by default.

    What another program keeps there (`rhino.hosted`) this one does, too: in one of the updates, which come on top of
    the number, or, where it is read or made otherwise, brought before it is first read.

    Returns: these. Their arguments and results say where they are (`rhino.dialect.memories`).
    """
    graph = import_graph(module)
    main = functions.find(module, "main")
    assert main is not None, "it was imported"
    given = {k for k, held in enumerate(functions.argument_attributes(main)) if RhinoHosted.name in held}
    updates = hosted_updates(graph)
    shared = [update for update in updates if not given.isdisjoint(k for k, _ in update.state)]
    others = [update for update in updates if update not in shared]
    chosen = [*shared, *others[: None if count < 0 else count]]
    values, ops = number_program(main)
    apart = given.difference(k for update in shared for k, _ in update.state)
    _bring(graph, apart, values, main)
    if not chosen:
        return Offloaded((), len(apart))
    block = main.regions[0].blocks[0]
    order = list(_ordered(graph, chosen))
    _arrange(block, ops, [o for item in order for o in (item.ops if isinstance(item, HostedUpdate) else (item,))])
    before: list[Any] = []
    for item in order:
        if isinstance(item, HostedUpdate):
            before = _write(graph, item, values, ops, block, before)
    _mark(main, [pair for update in chosen for pair in update.state])
    return Offloaded(tuple(chosen), len(apart))


def _made_of(graph: Graph, state: Mapping[int, int]) -> tuple[set[int], DisjointSets]:
    """The element-wise operations that state enters, and what only they read; values of one update are joined."""
    sets, users, made = DisjointSets(len(graph.values)), graph.users(), set[int]()
    reached = set(state)
    for op in graph.ops:
        if _works(graph, op) and not reached.isdisjoint(op.operands):
            made.add(op.index)
            reached.update(op.results)
            for v in op.operands:
                if v in reached:
                    sets.join(op.results[0], v)
    for op in reversed(graph.ops):
        readers = users[op.results[0]] if op.results else ()
        if op.index not in made and readers and _works(graph, op) and made.issuperset(readers):
            owners = {sets.find(graph.ops[o].results[0]) for o in readers}
            if len(owners) == 1 and op.results[0] not in graph.outputs:
                made.add(op.index)
                sets.join(op.results[0], graph.ops[readers[0]].results[0])
    return made, sets


def _works(graph: Graph, op: Op) -> bool:
    """Whether an operation is element by element, of the step itself."""
    return (
        op.parent < 0
        and len(op.results) == 1
        and op.tag != PLACEMENT
        and is_elementwise(graph, op)
        and (graph.values[op.results[0]].shape != ())
    )


def _update(graph: Graph, state: Mapping[int, int], ops: Sequence[int]) -> HostedUpdate | None:
    """An update of these operations; None where not all of its state is read and made by them alone."""
    among, users = set(ops), graph.users()
    results = {graph.ops[o].results[0] for o in ops}
    reads = dict.fromkeys(v for o in ops for v in graph.ops[o].operands)
    pairs = []
    for v in reads:
        if v in state:
            alias = graph.arguments[state[v]].alias
            if graph.outputs[alias] in results and among.issuperset(users[v]):
                pairs.append((state[v], alias))
    if not pairs:
        return None
    nbytes = sum(graph.values[graph.arguments[k].value].nbytes for k, _ in pairs)
    return HostedUpdate(tuple(ops), tuple(pairs), tuple(v for v in reads if v not in results), nbytes)


def _bring(graph: Graph, arguments: Iterable[int], values: Sequence[Any], main: Any) -> None:
    """Brings arguments that the hosts keep before the step, and returns what takes their place behind it."""
    block = main.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    pairs = []
    for k in sorted(arguments):
        argument, alias = values[graph.arguments[k].value], graph.arguments[k].alias
        readers = list(argument.uses)
        with main.context, main.location, ir.InsertionPoint.at_block_begin(block):
            here = place(argument, DEVICE)
        for use in readers:
            use.owner.operands[use.operand_number] = here
        if alias >= 0:
            with main.context, main.location, ir.InsertionPoint(end):
                end.operands[alias] = place(end.operands[alias], HOST)
        pairs.append((k, alias))
    _mark(main, pairs)


# --- the order -------------------------------------------------------------------------------------------------------


def _circular(graph: Graph, updates: Sequence[HostedUpdate]) -> set[int]:
    """The updates, by position, that cannot be done at once, as they read what is made of their own values."""
    stuck: set[int] = set()
    while True:
        rest = [update for k, update in enumerate(updates) if k not in stuck]
        done = {id(item) for item in _ordered(graph, rest) if isinstance(item, HostedUpdate)}
        missing = {k for k, update in enumerate(updates) if k not in stuck and id(update) not in done}
        if not missing:
            return stuck
        stuck |= missing


def _ordered(graph: Graph, updates: Sequence[HostedUpdate]) -> Iterator[HostedUpdate | int]:
    """The operations of @main in program order, but each update at once, in its place (`_ranks`).

    What cannot be reached, as an update waits for itself, is left out. Effects stay in their order.
    """
    tops = [op for op in graph.ops if op.parent < 0]
    unit = {o: -1 - k for k, update in enumerate(updates) for o in update.ops}
    needs: dict[int, set[int]] = {}
    effect = -1
    for op in tops:
        mine = unit.get(op.index, op.index)
        found = needs.setdefault(mine, set())
        for inner in graph.ops[op.index : max(op.index + 1, op.region_end)]:
            found.update(_unit_of(graph, unit, v) for v in inner.operands)
        if not op.results or op.name in _MAY_ACT:
            if effect >= 0:
                found.add(effect)
            effect = mine
        found.discard(mine)
    waiting: dict[int, list[int]] = {}
    left: dict[int, int] = {}
    for mine, found in needs.items():
        found = {n for n in found if n in needs}
        left[mine] = len(found)
        for n in found:
            waiting.setdefault(n, []).append(mine)
    rank = _ranks(graph, updates, needs)
    ready = [(rank[mine], mine) for mine, count in left.items() if not count]
    heapify(ready)
    while ready:
        _, mine = heappop(ready)
        yield mine if mine >= 0 else updates[-1 - mine]
        for other in waiting.get(mine, ()):
            left[other] -= 1
            if not left[other]:
                heappush(ready, (rank[other], other))


def _unit_of(graph: Graph, unit: Mapping[int, int], v: int) -> int:
    """Who makes a value: an update, or an operation of @main; a number that is neither for an argument."""
    o = graph.values[v].producer
    loop = graph.values[v].loop
    if o < 0:
        o = loop
    while o >= 0 and graph.ops[o].parent >= 0:
        o = graph.ops[o].parent
    return unit.get(o, o) if o >= 0 else len(graph.ops)


def _ranks(graph: Graph, updates: Sequence[HostedUpdate], needs: Mapping[int, set[int]]) -> dict[int, int]:
    """Who comes first of what could come next.

    An update comes as soon as its gradient is there, where as large ones follow; else at the end, the smallest first.
    What it needs comes before: counts and rates, which steps compute late, are soon made.
    """
    rank = {mine: mine for mine in needs}
    last = [_last(graph, update) for update in updates]
    # As many bytes as of the state of one kind.
    gradients = [update.nbytes // len(update.state) for update in updates]
    for k in sorted(range(len(updates)), key=lambda k: (last[k], k)):
        following = sum(size for o, size in zip(last, gradients, strict=True) if o > last[k])
        rank[-1 - k] = last[k] if following >= gradients[k] else len(graph.ops)
        pending = [-1 - k]
        while pending:
            for n in needs[pending.pop()]:
                if n >= 0 and n in rank and rank[n] > rank[-1 - k]:
                    rank[n] = rank[-1 - k]
                    pending.append(n)
    return rank


def _last(graph: Graph, update: HostedUpdate) -> int:
    """The operation that makes the last value that an update waits for: a gradient; -1 if it waits for none."""
    return max((graph.values[v].producer for v in update.waits if not _is_number(graph, v)), default=-1)


def _is_number(graph: Graph, v: int) -> bool:
    """Whether a value is a number, or one throughout."""
    producer = graph.values[v].producer
    op = graph.ops[producer] if producer >= 0 else None
    spread = op is not None and op.name == "stablehlo.broadcast_in_dim" and not graph.values[op.operands[0]].shape
    return not graph.values[v].shape or spread or v in splats(graph)


def _held(graph: Graph, update: HostedUpdate) -> int:
    """The last value in memory that an update waits for; -1 for none. A barrier would have any other written there."""
    real, o = materialised(graph), _last(graph, update)
    while o >= 0 and not real[graph.ops[o].results[0]]:
        o = max((graph.values[v].producer for v in graph.ops[o].operands if not _is_number(graph, v)), default=-1)
    return graph.ops[o].results[0] if o >= 0 else -1


def _arrange(block: Any, ops: Sequence[Any], order: Iterable[int]) -> None:
    """Puts the operations of a block in an order, before its terminator."""
    end = block.operations[len(block.operations) - 1]
    for o in order:
        ops[o].move_before(end)


# --- what is written -------------------------------------------------------------------------------------------------


def _write(
    graph: Graph, update: HostedUpdate, values: Sequence[Any], ops: Sequence[Any], block: Any, before: Sequence[Any]
) -> list[Any]:
    """Brings the state before an update and returns it behind: what the next update waits for.

    One waits for the other behind a barrier (`XLA: barriers-hold`): or XLA brings all state early, or returns it late.
    """
    first, last = ops[update.ops[0]], ops[update.ops[-1]]
    arguments = [values[graph.arguments[k].value] for k, _ in update.state]
    if not before and (late := _held(graph, update)) >= 0:
        before = [values[late]]
    with first.context, first.location, ir.InsertionPoint(first):
        barrier = stablehlo.OptimizationBarrierOp([*arguments, *before]).operation
        brought = {a: place(v, DEVICE) for a, v in zip(arguments, barrier.results, strict=False)}
    for o in update.ops:
        for position, operand in enumerate(ops[o].operands):
            if operand in brought:
                ops[o].operands[position] = brought[operand]
    end = block.operations[len(block.operations) - 1].operation
    there: list[Any] = []
    with last.context, last.location, ir.InsertionPoint.after(last):
        for _, alias in update.state:
            there.append(place(values[graph.outputs[alias]], HOST))
            end.operands[alias] = there[-1]
    return there


def _mark(main: Any, state: Iterable[tuple[int, int]]) -> None:
    given, returned = functions.argument_attributes(main), functions.result_attributes(main)
    for argument, alias in state:
        given[argument].pop(RhinoHosted.name, None)
        for attributes in (given[argument], *([returned[alias]] if alias >= 0 else [])):
            attributes[KIND] = ir.StringAttr.get(HOST, main.context)
    functions.set_argument_attributes(main, given)
    functions.set_result_attributes(main, returned)
