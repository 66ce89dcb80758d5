"""The ways to recompute that a training step has: as it is, with nothing computed again, and what adds to either.

Owns which of them are worth a look. Changes no program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.ir.import_graph import import_graph, number_program
from rhino.ir.recompute.rewrite import done_once
from rhino.ir.recompute.scans import find_pairs
from rhino.ir.recompute.step import Undone
from rhino.program.data import Graph
from rhino.program.recomputation import KEEP, POLICIES, Recomputation, Way
from rhino.recompute import choose, kept_bytes, read_step

# Of what the step keeps, the least that a way must spare to be one besides those that do less again.
_WORTH = 0.02


def as_it_is(graph: Graph) -> Way:
    """The way of a program in which nothing is computed again but what the program does."""
    return Way(replace(KEEP.told, kept_bytes=kept_bytes(read_step(graph))))


def variants(module: ir.Module, graph: Graph | None = None, pieces: bool = False) -> list[Way]:
    """The ways to recompute that are worth a look, from least to most; each keeps clearly less than all before it.

    None is the step as it is. Costs about as much as reading the module; nothing is changed, and bytes are
    estimates, to choose by what to try: of loops they are those of the pairs that are in the step as it is.

    Args:
      graph: the module's program, where it was read before.
      pieces: whether loops over layers were split for stages: of these, too, only the first may be done again, and also
        those of one trip.

    Raises:
      PassError: a tensor has a dynamic shape, or a call is left.
    """
    graph = graph or import_graph(module)
    main = functions.find(module, "main")
    assert main is not None, "it was imported"
    ops = number_program(main)[1]
    once = done_once(ops)
    step = read_step(graph)
    found: list[Way] = []
    last = len(step.parts) - 1
    for policy in POLICIES:
        loops = list(find_pairs(graph, ops, policy, once, 1 if pieces else 2))
        every = choose(step, policy, last, once)
        for share in (1, 2, 3, 4) if last > 0 or loops else ():
            count = max(1, -(-last * share // 4))
            pairs = loops[: -(-len(loops) * share // 4)] if pieces else loops
            saved = sum(pair.saved_bytes(graph) for pair in pairs)
            spared = tuple(i for pair in pairs for stacks in pair.dropped(graph) for s in stacks for i in s.accesses)
            segments = [segment for segment in every if segment.part < count]
            if segments or pairs:
                flops = sum(pair.flops(graph) for pair in pairs) + sum(s.flops for s in segments)
                kept = kept_bytes(step, segments) - saved
                told = Recomputation(policy, count, len(segments), len(pairs), kept, flops)
                items = [i for pair in pairs for i in pair.again] + [i for s in segments for i in s.again]
                again = tuple(k for i in items for k in range(i, max(i + 1, graph.ops[i].region_end)))
                found.append(Way(told, again, spared))
    found.sort(key=lambda way: (way.told.flops, way.told.kept_bytes, way.told.count))
    least = kept_bytes(step)
    step_bytes = _WORTH * least
    less: list[Way] = []
    for way in found:
        if way.told.kept_bytes < least - step_bytes:
            least = way.told.kept_bytes
            less.append(way)
    return less


def undone_ways(ways: Iterable[Way], undone: Undone) -> list[Way]:
    """Ways of what a step became, as ways of the step."""
    fuses = not (undone.operations or undone.loops)
    return [replace(way, told=replace(way.told, undoes=True, fuses=fuses)) for way in ways]


def all_ways(
    known: Sequence[Way],
    step: tuple[ir.Module, Graph],
    plain: tuple[ir.Module, Graph, Undone] | None,
    pieces: bool = False,
) -> tuple[Way, ...]:
    """Those that are known, then from least to most what adds to the step, and to the plain one.

    Args:
      known: the step as it is, and the plain one, if that is another.
      step, plain: the modules with their programs, and what was undone.
      pieces: as of `variants`.
    """
    if plain is None:
        return (*known, *variants(*step, pieces))
    module, graph, undone = plain
    # Of loops that only stack less, all that computes something again does so beside that.
    added = [] if known[-1].told.fuses else variants(*step, pieces)
    return (*known, *added, *undone_ways(variants(module, graph, pieces), undone))
