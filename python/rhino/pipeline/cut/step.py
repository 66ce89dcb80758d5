"""A micro-batched step as stage planning sees it: what stands before, in and after the loop, and what is cloned.

Owns the reading of a `Graph` in loop form: items (ops with their regions), what they read, carries, parameters and
their gradients. Decides nothing about phases and stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rhino.errors import RhinoError
from rhino.pipeline.cut.pieces import boundary, with_pieces
from rhino.program.data import STATE, Graph, Op
from rhino.program.fusible import is_fusible
from rhino.program.operations import SOURCES, stablehlo
from rhino.program.regions import body_items, item_reads

# Views of the batch: every stage can take its own.
_VIEWS = stablehlo("reshape slice dynamic_slice broadcast_in_dim")


@dataclass(frozen=True, slots=True)
class LoopCarry:
    """One value the loop changes: what enters it, the body's argument, what the body yields, the loop's result."""

    entry: int
    inside: int
    yielded: int
    result: int


@dataclass(frozen=True, slots=True)
class LoopForm:
    """A graph in loop form. Items are the ops at the top level and directly in the body; regions go with their op.

    Attributes:
      before, body, after: indices of the items before the loop, in its body and after it, in program order.
      reads: for each item, the values it and its regions read from outside of it. What the loop hands through
        unchanged is the value that entered, and a scalar spread outside the loop is the scalar.
      carries: the changed ones, without the counter.
      cloned: by op, whether every fragment that needs the result computes it itself.
      gradients: by index of a parameter among `graph.arguments`, the indices of its accumulators among `carries`.
      states: by index of an argument with role "opt_state", the argument index of the parameter it serves, if known.
    """

    graph: Graph
    loop: int
    before: tuple[int, ...]
    body: tuple[int, ...]
    after: tuple[int, ...]
    reads: dict[int, tuple[int, ...]]
    counter: int
    carries: tuple[LoopCarry, ...]
    cloned: bytearray
    gradients: dict[int, tuple[int, ...]]
    states: dict[int, int]

    @property
    def pins(self) -> dict[int, int]:
        """By index of an argument, the stage that it is pinned to."""
        pinned = self.graph.stages
        return {k: pinned[a.value] for k, a in enumerate(self.graph.arguments) if a.value in pinned}

    def staged(self, items: tuple[int, ...]) -> Iterator[int]:
        """The items that are not cloned."""
        return (i for i in items if not self.cloned[i])


def read_step(graph: Graph) -> LoopForm:
    """The step of a graph in loop form.

    Raises:
      RhinoError: there is no micro-batch loop, or no argument has a role.
    """
    if graph.microbatch_loop < 0:
        raise RhinoError(
            "the step has no micro-batch loop", "run rhino-split-microbatch{count=N} first; count=1 makes one too"
        )
    if all(a.role == "other" for a in graph.arguments):
        raise RhinoError("no argument of @main is a parameter or part of the batch", "run rhino-classify-args first")
    return _LoopFormReader(with_pieces(graph)).run()


class _LoopFormReader:
    """State of one reading."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.loop = graph.ops[graph.microbatch_loop]
        self.alias: dict[int, int] = {}
        for entry, _, inside, yielded, result in self.loop.ties:
            if inside == yielded:
                self.alias[inside] = self.alias[result] = entry

    def run(self) -> LoopForm:
        graph, loop = self.graph, self.loop
        top = [op.index for op in graph.ops if op.parent == -1 and op is not loop]
        body = body_items(graph, loop.index)
        spread = bytearray(len(graph.ops))
        for i in top:
            op = graph.ops[i]
            if op.name == "stablehlo.broadcast_in_dim" and not graph.values[op.operands[0]].shape:
                # A scalar is sent, and made a tensor where that is read.
                spread[i] = 1
                self.alias[op.results[0]] = self.alias.get(op.operands[0], op.operands[0])
        reads = {i: self._reads(graph.ops[i]) for i in (*top, *body)}
        counter = loop.ties[0]
        carries = tuple(
            LoopCarry(entry, inside, yielded, result)
            for entry, _, inside, yielded, result in loop.ties[1:]
            if inside != yielded
        )
        before = tuple(i for i in top if i < loop.index)
        after = tuple(i for i in top if i > loop.index)
        cloned = self._clones((*before, *body, *after), reads, counter[2], spread)
        gradients, states = self._gradients(before, after, reads, carries)
        return LoopForm(
            graph, loop.index, before, tuple(body), after, reads, counter[2], carries, cloned, gradients, states
        )

    def _reads(self, op: Op) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.alias.get(v, v) for v in item_reads(self.graph, op)))

    def _clones(
        self, items: tuple[int, ...], reads: dict[int, tuple[int, ...]], counter: int, cloned: bytearray
    ) -> bytearray:
        graph = self.graph
        free, scalars, batch = {counter}, {counter}, set()
        for argument in graph.arguments:
            if not graph.values[argument.value].shape and argument.role != "param":
                scalars.add(argument.value)
            elif argument.role not in STATE:
                batch.add(argument.value)
        for i in items:
            op, given = graph.ops[i], reads[i]
            if not op.results or op.region_end > i + 1:
                continue
            small = all(not graph.values[v].shape for v in (*op.results, *given))
            from_free = op.name in SOURCES or (is_fusible(op) and free.issuperset(given))
            if from_free or (small and scalars.issuperset(given)):
                free.update(op.results)
                if small:
                    scalars.update(op.results)
            elif op.name in _VIEWS and given and given[0] in batch and scalars.issuperset(given[1:]):
                batch.update(op.results)
            else:
                continue
            cloned[i] = 1
        for i in boundary(graph):
            cloned[i] = 1
        # What the loop carries on has one stage.
        for _, _, inside, yielded, _ in self.loop.ties[1:]:
            maker = graph.values[yielded].producer
            if inside != yielded and maker > self.loop.index:
                cloned[maker] = 0
        return cloned

    def _gradients(
        self,
        before: tuple[int, ...],
        after: tuple[int, ...],
        reads: dict[int, tuple[int, ...]],
        carries: tuple[LoopCarry, ...],
    ) -> tuple[dict[int, tuple[int, ...]], dict[int, int]]:
        """A parameter and an accumulator belong together where an update combines them element by element.

        Only values with as many elements count: global norms mix all gradients, but in a scalar.
        """
        graph = self.graph
        params: dict[int, int] = {}
        states: dict[int, int] = {}
        sums: dict[int, int] = {}
        for k, argument in enumerate(graph.arguments):
            if argument.role == "param":
                params[argument.value] = 1 << k
            elif argument.role == "opt_state" and graph.values[argument.value].shape:
                states[argument.value] = 1 << k
        for k, carry in enumerate(carries):
            sums[carry.result] = 1 << k
        pairs: dict[int, int] = {}
        served: dict[int, int] = {}
        for i in (*before, *after):
            for v in graph.ops[i].results:
                size = graph.values[v].elements
                same = [u for u in reads[i] if graph.values[u].elements == size]
                p, s, t = (_union(sets, same) for sets in (params, sums, states))
                if p and s:
                    for k in bits(p):
                        pairs[k] = pairs.get(k, 0) | s
                if p and t:
                    for k in bits(t):
                        served.setdefault(k, next(bits(p)))
                for sets, found in ((params, p), (sums, s), (states, t)):
                    if found:
                        sets[v] = found
        self._reshaped(after, reads, carries, params, pairs)
        return {k: tuple(bits(found)) for k, found in sorted(pairs.items())}, served

    def _reshaped(
        self,
        after: tuple[int, ...],
        reads: dict[int, tuple[int, ...]],
        carries: tuple[LoopCarry, ...],
        params: dict[int, int],
        pairs: dict[int, int],
    ) -> None:
        """Pairs the rest: where the end of a gradient's computation is behind the loop, its sums have other shapes."""
        graph = self.graph
        known = 0
        for found in pairs.values():
            known |= found
        sums = {c.result: 1 << k for k, c in enumerate(carries) if not known >> k & 1 and graph.values[c.result].shape}
        for i in after:
            found = _union(sets=sums, values=list(reads[i]))
            for v in graph.ops[i].results if found else ():
                if graph.values[v].shape:
                    sums[v] = found
                same = [u for u in reads[i] if graph.values[u].elements == graph.values[v].elements]
                for k in bits(_union(params, same)):
                    if not pairs.get(k, 0) & known:
                        pairs[k] = pairs.get(k, 0) | found


def _union(sets: dict[int, int], values: list[int]) -> int:
    found = 0
    for v in values:
        found |= sets.get(v, 0)
    return found


def bits(mask: int) -> Iterator[int]:
    """The positions of the bits that are set, from the lowest."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
