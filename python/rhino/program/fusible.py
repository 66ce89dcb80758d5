"""Which operations XLA computes inside the fusion of what reads them. `XLA: elementwise-fused, elementwise-made-again`.

Owns that reading of single operations. What it comes to for values is `rhino.program.fusion`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rhino.program.data import Graph, Op
from rhino.program.operations import HEAVY, NESTING, SOURCES, stablehlo

# Ops that XLA fuses into their readers. XLA: elementwise-fused, elementwise-made-again
_FUSIBLE_MISC = SOURCES | stablehlo("broadcast_in_dim reshape transpose slice pad concatenate reverse dynamic_slice")
UNFUSIBLE = (
    HEAVY | NESTING | stablehlo("reduce optimization_barrier dynamic_update_slice custom_call rng_bit_generator rng")
)


def is_fusible(op: Op) -> bool:
    """Whether XLA computes the op inside the fusion of whatever reads it."""
    if op.name == "stablehlo.reduce":
        # Over dimensions of 1 it is a reshape.
        return op.rule is not None and all(op.rule.factor_sizes[f] == 1 for f in op.rule.reduction)
    return op.name in _FUSIBLE_MISC or (op.rule is not None and op.name not in UNFUSIBLE and op.kernel is None)


def is_made_apart(graph: Graph, v: int) -> bool:
    """Whether a value is given, or made by what is computed by itself: no reader has it made again in a fusion."""
    maker = graph.values[v].producer
    return maker < 0 or not is_fusible(graph.ops[maker])


def is_elementwise(graph: Graph, op: Op) -> bool:
    """Whether each element of the result is made of the elements at its place in the operands, or of scalars."""
    shape = graph.values[op.results[0]].shape if op.results else ()
    return (
        op.name not in _FUSIBLE_MISC
        and is_fusible(op)
        and all(graph.values[v].shape in (shape, ()) for v in op.operands)
    )


def made_of(graph: Graph, values: Iterable[int], goes_on: Callable[[int, Op], bool]) -> Iterator[int]:
    """Values, and what they are made of, each once: behind one only if its maker, too, is where the walk goes on."""
    queue = list(dict.fromkeys(values))
    seen = set(queue)
    for v in queue:
        yield v
        maker = graph.values[v].producer
        if maker >= 0 and goes_on(v, graph.ops[maker]):
            fresh = [u for u in dict.fromkeys(graph.ops[maker].operands) if u not in seen]
            seen.update(fresh)
            queue.extend(fresh)
