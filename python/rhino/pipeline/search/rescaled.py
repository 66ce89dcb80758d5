"""Steps cut into some number of parts, derived from the same step cut into fewer and into more, which takes less time.

Owns how sizes follow the number of parts, and when two programs are too unlike for that. What was derived is only made
when the search has chosen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rhino.errors import RhinoError
from rhino.pipeline.search.sharded import Prepared, prepare
from rhino.pipeline.search.solution import Programs
from rhino.program.data import Graph, Op, Rule, Value
from rhino.program.recomputation import Recomputation


class RescaledPrograms:
    """Programs of which few are made: the others are derived from those where that can be."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.made: dict[int, Prepared] = {programs.example.graph.microbatches: programs.example}
        self.derived: dict[int, Prepared] = {}

    @property
    def batch(self) -> int:
        """Examples in a step."""
        return self.programs.batch

    @property
    def example(self) -> Prepared:
        """The step cut into some number of parts."""
        return self.programs.example

    def graph(self, parts: int) -> Graph | None:
        """The step as a loop over so many parts, not derived; None if it cannot be cut so."""
        return self.programs.graph(parts)

    def prepared(self, parts: int) -> Prepared | None:
        """The same, read for the search, which may be derived."""
        if parts not in self.made and parts not in self.derived:
            graph = self._derive(parts)
            if graph is not None:
                self.derived[parts] = prepare(graph)
        return self.derived.get(parts) or self._make(parts)

    def is_cut(self, parts: int) -> bool:
        """Whether it was cut so already, not only derived."""
        return self.programs.is_cut(parts)

    def refusal(self, parts: int) -> RhinoError | None:
        """Why it cannot be cut so."""
        return self.programs.refusal(parts)

    @property
    def again(self) -> Recomputation | None:
        """What was chosen to be computed again."""
        return self.programs.again

    def derived_truly(self, parts: int) -> bool:
        """Whether a program is as it was derived."""
        derived = self.derived.get(parts)
        return not derived or self.graph(parts) == derived.graph

    def _make(self, parts: int) -> Prepared | None:
        found = self.programs.prepared(parts)
        if found is not None:
            self.made[parts] = found
        return found

    def _derive(self, parts: int) -> Graph | None:
        """From the nearest programs with fewer and with more parts that are alike."""
        fewer = max((n for n in self.made if n < parts), default=0)
        for more in sorted(n for n in self.made if n > parts and fewer):
            found = rescaled(self.made[fewer].graph, self.made[more].graph, parts)
            if found is not None:
                return found
        return None


def rescaled(fewer: Graph, more: Graph, parts: int) -> Graph | None:
    """The program with `parts` trips of its micro-batch loop, from two with fewer and with more trips.

    Every size is the same in both, or inversely as the trips, or as the trips, and so it is between them.

    Returns: None where the two differ in anything else, or a dimension becomes one: programs are then simplified.
    """
    try:
        return _Rescaling(fewer, more, parts).graph()
    except _UnlikeError:
        return None


class _UnlikeError(Exception):
    """Two programs differ in more than their number of parts."""


class _Rescaling:
    def __init__(self, fewer: Graph, more: Graph, parts: int) -> None:
        self.fewer, self.more = fewer, more
        self.trips = (fewer.microbatches, more.microbatches)
        self.parts = parts
        self.sizes: dict[tuple[int, int], int] = {}
        self.rules: dict[tuple[int, int], Rule] = {}

    def graph(self) -> Graph:
        fewer, more = self.fewer, self.more
        kept = "arguments", "outputs", "pins", "loose", "stages", "stage_pins", "shared_out", "microbatch_loop"
        same = all(getattr(fewer, name) == getattr(more, name) for name in kept)
        if not same or len(fewer.ops) != len(more.ops) or len(fewer.values) != len(more.values):
            raise _UnlikeError
        values = [self.value(a, b) for a, b in zip(fewer.values, more.values, strict=True)]
        ops = [self.op(a, b, values) for a, b in zip(fewer.ops, more.ops, strict=True)]
        return replace(fewer, values=values, ops=ops)

    def op(self, a: Op, b: Op, values: Sequence[Value]) -> Op:
        if (a.name, a.operands, a.results, a.parent, a.region_end, a.ties, a.tag, a.convolved) != (
            b.name, b.operands, b.results, b.parent, b.region_end, b.ties, b.tag, b.convolved,
        ):  # fmt: skip
            raise _UnlikeError
        if a.manual is not None or b.manual is not None:
            raise _UnlikeError
        # Most count their largest tensor, which need not be the same one in both.
        largest = a.flops == _largest(a, self.fewer.values) and b.flops == _largest(b, self.more.values)
        flops = _largest(a, values) if largest else self.size(a.flops, b.flops)
        return Op(
            a.index, a.name, a.operands, a.results, self.rule(a.rule, b.rule), flops, self.size(a.trips, b.trips),
            a.parent, a.region_end, a.ties, a.where, a.tag, self.size(a.iterations, b.iterations),
            convolved=a.convolved,
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
        """A number that is a with fewer parts and b with more."""
        if a == b:
            return a
        found = self.sizes.get((a, b))
        if found is None:
            fewer, more = self.trips
            if a * fewer == b * more:
                found, rest = divmod(a * fewer, self.parts)
            elif a * more == b * fewer:
                found, rest = divmod(a * self.parts, fewer)
            else:
                raise _UnlikeError
            if rest or min(a, b, found) == 1:
                raise _UnlikeError
            self.sizes[a, b] = found
        return found


def _largest(op: Op, values: Sequence[Value]) -> int:
    """Elements of the largest tensor of an op."""
    return max((values[v].elements for v in (*op.operands, *op.results[:1])), default=0)
