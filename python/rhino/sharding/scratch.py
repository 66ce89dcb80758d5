"""Memory that XLA takes besides the values of the program: what is costly, and what a GPU without bfloat16 widens.

Owns what is kept, for how long and how it is divided, whatever the plan; found by reading buffers XLA assigned.
`XLA: elements-widened, dots-widened, tanh-kept, wide-tanh-kept, kernels-turned`. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from rhino.program.costly import costly, made_once
from rhino.program.fusion import buffers, materialised
from rhino.program.memory import Lifetimes
from rhino.program.siblings import merged
from rhino.program.turned import turned
from rhino.program.unwritten import unrounded
from rhino.sharding.manual import Inside
from rhino.sharding.problem import Problem
from rhino.xla import BackEnd


@dataclass(frozen=True, slots=True)
class Scratch:
    """`nbytes` undivided bytes on account of `value`, alive from op `first` to `last`.

    They are divided by the axes whose state s of `node` has s - 1 in `classes`.
    """

    value: int
    node: int
    classes: tuple[int, ...]
    nbytes: int
    first: int
    last: int


def scratch(problem: Problem, life: Lifetimes, dots: Sequence[int], back_end: BackEnd) -> tuple[Scratch, ...]:
    """All of a program.

    Args:
      dots: the indices of ops that multiply matrices.
    """
    return *_beside_values(problem, life, dots, back_end), *_turned(problem, back_end)


def _beside_values(problem: Problem, life: Lifetimes, dots: Sequence[int], back_end: BackEnd) -> list[Scratch]:
    """What comes of values that the program computes."""
    found = list(_written(problem, back_end))
    if back_end.widened == "nothing":
        return found
    found.extend(_shared(problem, life, back_end.dots_widened, {s.value for s in found}))
    if back_end.dots_widened:
        until = {s.value: s.last for s in found}
        found.extend(_together(problem, life, until, copied_wide(problem, life, dots)))
        found.extend(_upcast(problem, life, frozenset(dots)))
    return found


def held(problem: Problem, insides: Mapping[int, Inside]) -> Iterator[Scratch]:
    """What manual computations and kernels hold while they run."""
    for node in problem.nodes:
        if node.kind != "op":
            continue
        op = problem.graph.ops[node.ops[0]]
        inside = insides.get(op.index)
        own = [(m.factors, m.nbytes) for m in op.kernel.held] if op.kernel is not None else []
        for factors, nbytes in own if inside is None else inside.held:
            classes = tuple(i for i, f in enumerate(node.factors) if f in factors)
            yield Scratch(op.results[0], node.index, classes, nbytes, op.index, op.index)


def _together(problem: Problem, life: Lifetimes, until: dict[int, int], wide: frozenset[int]) -> Iterator[Scratch]:
    """What one kernel writes and reads is all there at once, also what would have been given up before.

    Args:
      until: until when values are kept anyway, beyond their lifetime; kept up to date.
      wide: values that are kept as float32.
    """
    graph = problem.graph
    ends = {root: end for root, _, end in life.intervals}
    for kernel in merged(graph):
        for v in (*kernel.results, *kernel.read):
            end = max(ends.get(v, kernel.at), until.get(v, -1))
            if end < kernel.at and problem.node_of[v] >= 0:
                until[v] = kernel.at
                nbytes = graph.values[v].nbytes * (2 if v in wide else 1)
                yield Scratch(v, problem.node_of[v], problem.classes[v], nbytes, end + 1, kernel.at)


def _upcast(problem: Problem, life: Lifetimes, dots: frozenset[int]) -> Iterator[Scratch]:
    """What a bfloat16 dot reads and makes is float32 for as long as it lives; what it is handed, a copy at the dot.

    There is one copy of an argument for all dots that read it.
    """
    graph = problem.graph
    spans = {root: (first, last) for root, first, last in life.intervals}
    given = {argument.value for argument in graph.arguments}
    own, wide = own_values(problem, life), unrounded(graph)
    held: set[int] = set()
    for node in problem.nodes:
        op = graph.ops[node.ops[0]] if node.kind == "op" else None
        if op is None or op.index not in dots or op.rule is None:
            continue
        for v, mapping in zip((*op.operands, *op.results), (*op.rule.operands, *op.rule.results), strict=True):
            value = graph.values[v]
            if value.dtype != "bf16" or v in wide or v in held:
                continue
            if v in own:
                held.add(v)
                yield Scratch(v, problem.node_of[v], problem.classes[v], value.nbytes, *spans[v])
                continue
            factors = {f for dim in mapping for f in dim}
            classes = tuple([i for i, f in enumerate(node.factors) if f in factors])
            readers = [op.index]
            if v in given and op.parent < 0:
                readers = [o for o in graph.users()[v] if o in dots]
                held.add(v)
            yield Scratch(v, node.index, classes, 2 * value.nbytes, readers[0], readers[-1])


def own_values(problem: Problem, life: Lifetimes) -> frozenset[int]:
    """Values that a program computes for itself: in a buffer of their own, which no loop carries."""
    tied = {v for op in problem.graph.ops for tie in op.ties for v in tie}
    return frozenset(v for v, _, _ in life.intervals if v not in tied and problem.node_of[v] >= 0)


def copied_wide(problem: Problem, life: Lifetimes, dots: Sequence[int]) -> frozenset[int]:
    """Values that dots, which work in float32, read or make in other layouts, too: each beside a float32 copy of it."""
    graph = problem.graph
    met = {v for o in dots for v in (*graph.ops[o].operands, *graph.ops[o].results)}
    return frozenset(v for v in own_values(problem, life) & met if graph.values[v].dtype == "bf16")


def _written(problem: Problem, back_end: BackEnd) -> Iterator[Scratch]:
    """What is costly, from where it is made to the last kernel that reads it."""
    graph = problem.graph
    summed = back_end.costly_kept and back_end.widened == "nothing"  # else see `_shared`
    for v, made in made_once(graph, back_end.tanh_kept, back_end.wide_tanh_kept, summed):
        value = graph.values[v]
        if problem.node_of[v] >= 0:
            nbytes = value.nbytes if back_end.widened == "nothing" else max(4 * value.elements, value.nbytes)
            last = max(graph.values[d].producer for d in made)
            yield Scratch(v, problem.node_of[v], problem.classes[v], nbytes, value.producer, last)


def _turned(problem: Problem, back_end: BackEnd) -> Iterator[Scratch]:
    """Kernels of convolutions in the order that these read them in, divided as they are kept."""
    for v, first, last in turned(problem.graph) if back_end.kernels_turned else ():
        if problem.node_of[v] >= 0:
            nbytes = problem.graph.values[v].nbytes
            yield Scratch(v, problem.node_of[v], problem.classes[v], nbytes, first, last)


def _shared(problem: Problem, life: Lifetimes, dots_upcast: bool, kept: Set[int]) -> Iterator[Scratch]:
    """What GELU's gradient shares with GELU computed again, where a bias gradient is summed: written as float32.

    One kernel then makes all that is read of it, so what could have been made earlier, and given up, waits for the
    last. Without that sum XLA computes it again for each. Where dots work in float32 one kernel makes all anyway,
    and keeps the tanh inside: there its bytes stand for gradients that wait for late dots (ViT on V100s: 0.96 of XLA's
    peak, 0.88 without all of this).
    """
    graph = problem.graph
    real = materialised(graph)
    shared = list(costly(graph, real))
    owner = buffers(graph) if shared else []
    last = {root: end for root, _, end in life.intervals}
    for v, made, summed in shared:
        if problem.node_of[v] < 0 or not (summed or dots_upcast):
            continue
        at = max(graph.values[d].producer for d in made)
        if v not in kept:
            yield Scratch(v, problem.node_of[v], problem.classes[v], 4 * graph.values[v].elements, at, at)
        for d in made:
            end = last.get(owner[d])
            if end is not None and end < at and problem.node_of[d] >= 0:
                yield Scratch(d, problem.node_of[d], problem.classes[d], graph.values[d].nbytes, end + 1, at)
