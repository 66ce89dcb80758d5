"""What the analysis needs to know of a program besides its graph: regions, and a few attributes in short.

Owns the data model. Filled from MLIR by the pass, or by hand in tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rhino.program.data import Graph, Op


@dataclass(frozen=True, slots=True)
class Region:
    """One region: the values of its arguments, the ops directly in it, and the values it passes on."""

    args: tuple[int, ...]
    ops: tuple[int, ...]
    yields: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Facts by op index.

    `regions`: of loops (condition, then body) and branches. `zeros`: constants that are zero everywhere. `combiners`:
    what the region of a reduction or scatter does, such as stablehlo.add, or nothing if it is not one operation.
    `neutral`: reductions and scatters that start from a constant that changes nothing, or do not mind.
    `captures`: outside values that the region of a reduction, sort or the like reads.
    `grouped`: dimensions of a convolution's first operand that its groups divide. `effects`: ops that must run.
    `host`: calls of Python functions, which see whole values once. `joins`: the dimension of a concatenation.
    `edges`: what a slice or pad adds to each dimension's start and end, below zero what it takes away; None where it
    leaves gaps.
    """

    regions: Mapping[int, tuple[Region, ...]] = field(default_factory=dict)
    zeros: frozenset[int] = frozenset()
    combiners: Mapping[int, str] = field(default_factory=dict)
    neutral: frozenset[int] = frozenset()
    captures: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    grouped: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    effects: frozenset[int] = frozenset()
    host: frozenset[int] = frozenset()
    joins: Mapping[int, int] = field(default_factory=dict)
    edges: Mapping[int, tuple[tuple[int, int] | None, ...]] = field(default_factory=dict)


class Reads:
    """What operations read, the outside values read in their regions included, and which operations are needed."""

    def __init__(self, graph: Graph, facts: BatchFacts) -> None:
        self.graph, self.facts = graph, facts
        self.captured: dict[int, tuple[int, ...]] = dict(facts.captures)
        for k in sorted(facts.regions, reverse=True):
            self.captured[k] = self._captures(graph.ops[k])
        # Values that something reads; a loop may make others.
        self.used = {v for op in graph.ops for v in self.of(op.index)} | set(graph.outputs)
        self.used.update(v for regions in facts.regions.values() for region in regions for v in region.yields)

    def _captures(self, op: Op) -> tuple[int, ...]:
        graph, regions = self.graph, self.facts.regions[op.index]
        inside = {v for region in regions for v in region.args}
        found: dict[int, None] = {}
        for region in regions:
            for k in region.ops:
                inside.update(graph.ops[k].results)
                found.update(dict.fromkeys(self.of(k)))
            found.update(dict.fromkeys(region.yields))
        return tuple(v for v in found if v not in inside)

    def of(self, k: int) -> tuple[int, ...]:
        """All values that op k reads from its scope."""
        operands = self.graph.ops[k].operands
        return (*operands, *self.captured[k]) if k in self.captured else operands

    def live(self, ops: tuple[int, ...], wanted: tuple[int, ...]) -> list[int]:
        """Those of a scope's ops on which a wanted value or an effect depends, in order."""
        needed = set(wanted)
        found = []
        for k in reversed(ops):
            if k in self.facts.effects or not needed.isdisjoint(self.graph.ops[k].results):
                found.append(k)
                needed.update(self.of(k))
        return found[::-1]
