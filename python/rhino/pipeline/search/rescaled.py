"""Steps cut into some number of slices, told from the same step cut into fewer and into more, which takes less time.

Owns how sizes follow the number of slices, and when two programs are too unlike to tell. What was told is only made
when the search has chosen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rhino.errors import RhinoError
from rhino.pipeline.search.sharded import Prepared, prepare
from rhino.pipeline.search.solution import Programs
from rhino.program.data import Graph, Op, Rule, Value


class RescaledPrograms:
    """Programs of which few are made: the others are told from those where that can be."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.made: dict[int, Prepared] = {programs.example.slices: programs.example}
        self.told: dict[int, Prepared] = {}

    @property
    def batch(self) -> int:
        """Examples in a step."""
        return self.programs.batch

    @property
    def example(self) -> Prepared:
        """The step cut into some number of slices."""
        return self.programs.example

    def prepared(self, slices: int) -> Prepared | None:
        """The step as a loop over so many slices; None if it cannot be cut so."""
        if slices not in self.made and slices not in self.told:
            graph = self._tell(slices)
            if graph is not None:
                self.told[slices] = prepare(graph)
        return self.told.get(slices) or self._make(slices)

    def is_cut(self, slices: int) -> bool:
        """Whether it was cut so already, not only told."""
        return self.programs.is_cut(slices)

    def refusal(self, slices: int) -> RhinoError | None:
        """Why it cannot be cut so."""
        return self.programs.refusal(slices)

    def told_truly(self, slices: int) -> bool:
        """Whether a program is as it was told."""
        told = self.told.get(slices)
        made = told and self._make(slices)
        return not told or (made is not None and made.graph == told.graph)

    def _make(self, slices: int) -> Prepared | None:
        found = self.programs.prepared(slices)
        if found is not None:
            self.made[slices] = found
        return found

    def _tell(self, slices: int) -> Graph | None:
        """From the nearest programs with fewer and with more slices that are alike."""
        fewer = max((n for n in self.made if n < slices), default=0)
        for more in sorted(n for n in self.made if n > slices and fewer):
            found = rescaled(self.made[fewer].graph, self.made[more].graph, slices)
            if found is not None:
                return found
        return None


def rescaled(fewer: Graph, more: Graph, slices: int) -> Graph | None:
    """The program with `slices` trips of its micro-batch loop, from two with fewer and with more trips.

    Every size is the same in both, or inversely as the trips, or as the trips, and so it is between them.

    Returns: None where the two differ in anything else, or a dimension becomes one: programs are then simplified.
    """
    try:
        return _Telling(fewer, more, slices).graph()
    except _UnlikeError:
        return None


class _UnlikeError(Exception):
    """Two programs differ in more than their number of slices."""


class _Telling:
    def __init__(self, fewer: Graph, more: Graph, slices: int) -> None:
        self.fewer, self.more = fewer, more
        self.trips = tuple(int(g.ops[g.microbatch_loop].tag) for g in (fewer, more))
        self.slices = slices
        self.sizes: dict[tuple[int, int], int] = {}
        self.rules: dict[tuple[int, int], Rule] = {}

    def graph(self) -> Graph:
        fewer, more = self.fewer, self.more
        kept = "arguments", "outputs", "pins", "loose", "stages", "stage_pins", "microbatch_loop"
        same = all(getattr(fewer, name) == getattr(more, name) for name in kept)
        if not same or len(fewer.ops) != len(more.ops) or len(fewer.values) != len(more.values):
            raise _UnlikeError
        values = [self.value(a, b) for a, b in zip(fewer.values, more.values, strict=True)]
        ops = [self.op(a, b, values) for a, b in zip(fewer.ops, more.ops, strict=True)]
        return replace(fewer, values=values, ops=ops)

    def op(self, a: Op, b: Op, values: Sequence[Value]) -> Op:
        if (a.name, a.operands, a.results, a.parent, a.region_end, a.ties) != (
            b.name, b.operands, b.results, b.parent, b.region_end, b.ties,
        ):  # fmt: skip
            raise _UnlikeError
        if a.manual is not None or b.manual is not None:
            raise _UnlikeError
        tag = a.tag
        if a.tag != b.tag:
            if a.name != "stablehlo.while":
                raise _UnlikeError
            tag = str(self.size(int(a.tag), int(b.tag)))
        # Most count their largest tensor, which need not be the same one in both.
        largest = a.flops == _largest(a, self.fewer.values) and b.flops == _largest(b, self.more.values)
        flops = _largest(a, values) if largest else self.size(a.flops, b.flops)
        return Op(
            a.index, a.name, a.operands, a.results, self.rule(a.rule, b.rule), flops, self.size(a.trips, b.trips),
            a.parent, a.region_end, a.ties, a.where, tag,
        )  # fmt: skip

    def value(self, a: Value, b: Value) -> Value:
        if (a.dtype, a.producer, a.loop) != (b.dtype, b.producer, b.loop):
            raise _UnlikeError
        return Value(a.index, self.all_sizes(a.shape, b.shape), a.dtype, a.producer, a.loop)

    def rule(self, a: Rule | None, b: Rule | None) -> Rule | None:
        if a is None or b is None:
            if a is not b:
                raise _UnlikeError
            return None
        # Ops of a program share their rules.
        key = id(a), id(b)
        found = self.rules.get(key)
        if found is None:
            sizes = self.all_sizes(a.factor_sizes, b.factor_sizes)
            found = self.rules[key] = replace(a, factor_sizes=sizes)
            if found != replace(b, factor_sizes=sizes):
                raise _UnlikeError
        return found

    def all_sizes(self, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
        if len(a) != len(b):
            raise _UnlikeError
        return tuple([self.size(x, y) for x, y in zip(a, b, strict=True)])

    def size(self, a: int, b: int) -> int:
        """A number that is a with fewer slices and b with more."""
        if a == b:
            return a
        found = self.sizes.get((a, b))
        if found is None:
            fewer, more = self.trips
            if a * fewer == b * more:
                found, rest = divmod(a * fewer, self.slices)
            elif a * more == b * fewer:
                found, rest = divmod(a * self.slices, fewer)
            else:
                raise _UnlikeError
            if rest or min(a, b, found) == 1:
                raise _UnlikeError
            self.sizes[a, b] = found
        return found


def _largest(op: Op, values: Sequence[Value]) -> int:
    """Elements of the largest tensor of an op."""
    return max((values[v].elements for v in (*op.operands, *op.results[:1])), default=0)
