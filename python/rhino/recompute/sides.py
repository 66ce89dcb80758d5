"""Which operations of a training step are of its forward and which of its backward pass.

Owns that reading of a whole step of any form; `rhino.pipeline.cut.phases` reads one in the form that a pipeline is cut
in. What is told here decides what is worth computing again, not whether that is right: it always is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rhino.program.data import Graph, Op
from rhino.program.operations import CONTRACTIONS, HEAVY
from rhino.program.regions import body_items, item_reads

LOOP = "stablehlo.while"
_BARRIER = "stablehlo.optimization_barrier"
# Results that are asked whether they are the loss, and the share of all arithmetic that the loop has which is a step.
_MOST_CANDIDATES, _WHOLE_STEP = 64, 0.9


@dataclass(frozen=True, slots=True)
class Sides:
    """The two passes of a step. Items are operations with their regions, in program order.

    Attributes:
      scope: the loop in whose body both passes are, such as one over micro-batches, or -1.
      forward, backward: items of the scope; what comes after the gradients is among the latter.
      reads: by item, the values from outside of it that it reads.
      fixed: values that follow from arguments and what else the whole scope can read, with nothing heavy on the way:
        casts of parameters, masks, bits of dropout.
    """

    scope: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    reads: Mapping[int, tuple[int, ...]]
    fixed: frozenset[int]


def find_sides(graph: Graph) -> Sides:
    """The passes of a step with roles. Without a parameter, or without gradients, everything is forward.

    The loss is the result that depends on most parameters and takes least arithmetic: a gradient depends on the loss,
    and new state on gradients. All that comes before its last product is forward, derivatives that are computed on the
    way included. Where no result tells, but parameters are updated, the first item that depends on all of them begins
    the backward pass.
    """
    scope = _scope(graph)
    items = body_items(graph, scope)
    reads = {i: item_reads(graph, graph.ops[i]) for i in items}
    depends = _depends(graph, items, reads)
    outputs = graph.outputs if scope < 0 else tuple(tie[3] for tie in graph.ops[scope].ties)
    forward = _loss_ancestors(graph, scope, items, reads, depends, outputs)
    if forward is None and not any(a.role == "param" and a.alias >= 0 for a in graph.arguments):
        # It only infers; where new state is no argument's, the loss is among the results.
        return Sides(scope, tuple(items), (), reads, fixed_values(graph, items, reads))
    if forward is None:
        most = max((depends[v].bit_count() for i in items for v in graph.ops[i].results), default=0)
        last = next(
            (i for i in items if most and any(depends[v].bit_count() == most for v in graph.ops[i].results)), None
        )
        forward, turn = set(), -1 if last is None else last
    else:
        turn = max((i for i in forward if products(graph, graph.ops[i])), default=-1)
    first = tuple(i for i in items if i < turn or i in forward)
    known = frozenset(first)
    return Sides(scope, first, tuple(i for i in items if i not in known), reads, fixed_values(graph, items, reads))


def products(graph: Graph, op: Op) -> int:
    """The arithmetic of an item's products and kernels, those in its regions included, in one step."""
    return sum(
        o.flops * o.trips
        for o in graph.ops[op.index : max(op.index + 1, op.region_end)]
        if o.name in CONTRACTIONS or o.kernel is not None
    )


def _scope(graph: Graph) -> int:
    """The loop that is the whole step but for the update, if there is one."""
    scope = graph.microbatch_loop
    while scope < 0:
        items = body_items(graph, scope)
        work = {i: products(graph, graph.ops[i]) for i in items}
        loops = [i for i in items if graph.ops[i].name == LOOP and work[i] > _WHOLE_STEP * sum(work.values())]
        if not loops:
            break
        scope = loops[0]
    return scope


def _depends(graph: Graph, items: Sequence[int], reads: Mapping[int, Sequence[int]]) -> list[int]:
    """By value, the parameters that it depends on, as a bit set; of values in the scope only."""
    found = [0] * len(graph.values)
    bit = 1
    for argument in graph.arguments:
        if argument.role == "param":
            found[argument.value] = bit
            bit <<= 1
    scope = graph.values[graph.ops[items[0]].results[0]].loop if items and graph.ops[items[0]].results else -1
    if scope >= 0:
        for i in body_items(graph, -1):
            if i < scope:
                mask = _union(found, item_reads(graph, graph.ops[i]))
                for v in graph.ops[i].results:
                    found[v] = mask
        for tie in graph.ops[scope].ties:
            if tie[2] == tie[3]:
                found[tie[2]] = found[tie[0]]
    for i in items:
        mask = _union(found, reads[i])
        if mask:
            for v in graph.ops[i].results:
                found[v] = mask
    return found


def _union(sets: Sequence[int], values: Sequence[int]) -> int:
    mask = 0
    for v in values:
        mask |= sets[v]
    return mask


def _loss_ancestors(
    graph: Graph,
    scope: int,
    items: Sequence[int],
    reads: Mapping[int, Sequence[int]],
    depends: Sequence[int],
    outputs: Sequence[int],
) -> set[int] | None:
    """What leads to the loss and to what is about as near; None where no result is known to be like a loss."""
    aliased = {graph.outputs[a.alias] for a in graph.arguments if a.alias >= 0} if scope < 0 else set()
    candidates = [v for v in dict.fromkeys(outputs) if v not in aliased and depends[v]]
    if not aliased or len(candidates) > _MOST_CANDIDATES:
        candidates = [v for v in candidates if not graph.values[v].shape]
    most = max((depends[v].bit_count() for v in candidates), default=0)
    everything = max((found.bit_count() for found in depends), default=0)
    if 2 * most < everything or not most:
        return None
    maker = {v: i for i in items for v in graph.ops[i].results}
    work = {i: products(graph, graph.ops[i]) for i in items}
    found: list[tuple[int, set[int]]] = []
    for v in candidates[:_MOST_CANDIDATES]:
        if depends[v].bit_count() == most:
            ancestors = _ancestors(v, maker, reads)
            found.append((sum(work[i] for i in ancestors), ancestors))
    least = min(size for size, _ in found)
    near = [ancestors for size, ancestors in found if 2 * size <= 3 * least]
    forward = set().union(*near)
    total = sum(work.values())
    # Where the norm of the gradients is all that is returned, the backward pass leads to it, too.
    return None if total and sum(work[i] for i in forward) > _WHOLE_STEP * total else forward


def _ancestors(value: int, maker: Mapping[int, int], reads: Mapping[int, Sequence[int]]) -> set[int]:
    found: set[int] = set()
    pending = [value]
    while pending:
        item = maker.get(pending.pop())
        if item is not None and item not in found:
            found.add(item)
            pending.extend(reads[item])
    return found


def fixed_values(
    graph: Graph, items: Sequence[int], reads: Mapping[int, Sequence[int]], changing: Collection[int] = ()
) -> frozenset[int]:
    """`Sides.fixed`; `changing` are values that items can read, but only now."""
    inside = {v for i in items for v in graph.ops[i].results}
    found: set[int] = set()
    for i in items:
        op = graph.ops[i]
        if op.name in HEAVY or op.kernel is not None or op.region_end > i + 1 or op.name == _BARRIER:
            continue
        if all(v in found or (v not in inside and v not in changing) for v in reads[i]):
            found.update(op.results)
    return frozenset(found)
