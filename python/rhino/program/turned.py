"""Kernels of convolutions that XLA keeps in an order of its own, beside the program's.

Owns which those are, whatever the plan, for how long, and which tensor is copied for that: `XLA: kernels-turned`.
Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Collection

from rhino.program.data import Graph, Op, once
from rhino.program.fusible import is_made_apart
from rhino.program.fusion import buffers, is_invariant

# A kernel that is read in another order is turned round, or loses a dimension, on the way.
_VIEWS = ("stablehlo.reverse", "stablehlo.reshape")
_ROWS = ("stablehlo.slice", "stablehlo.dynamic_slice")


@once
def turned(graph: Graph) -> tuple[tuple[int, int, int], ...]:
    """(value, first op, last op): arguments that are kept twice while convolutions read them as kernels.

    GPUs' convolutions want the output features outermost, and XLA turns a kernel once for all that read it, of layers
    all at once, in front of the loop. What is computed first, a conversion say, is written in that order. The gradient
    of the input reads a kernel of one position as it is. Fragments of a pipeline, forward and backward, turn it for
    themselves.
    """
    owner = buffers(graph)
    given = {owner[argument.value] for argument in graph.arguments}
    found: dict[tuple[int, bool], tuple[int, int]] = {}
    for op in graph.ops:
        if op.name != "stablehlo.convolution" or op.rule is None:
            continue
        kernel, is_round = _kernel(graph, op)
        if kernel < 0 or owner[kernel] not in given or not _is_kept_twice(graph, op, is_round):
            continue
        first, last = _span(graph, op)
        key = owner[kernel], is_round and graph.microbatch_loop >= 0
        known = found.get(key, (first, last))
        found[key] = min(first, known[0]), max(last, known[1])
    return tuple((v, *span) for (v, _), span in found.items())


@once
def turned_round(graph: Graph) -> frozenset[int]:
    """What turns a kernel round for convolutions makes: the gradient of their input reads it so."""
    users, found = graph.users(), []
    for op in graph.ops:
        if op.name == "stablehlo.reverse":
            (made,) = op.results
            readers = [graph.ops[o] for o in users[made]]
            if readers and all(o.name == "stablehlo.convolution" and o.operands[0] != made for o in readers):
                found.append(made)
    return frozenset(found)


def copied_kernel(graph: Graph, op: Op) -> int | None:
    """Which tensor a convolution has copied into the library's order, or out of it: its operand 1 or, of a kernel's
    gradient, its result, -1; None if none. What is converted is written in that order.
    """
    if op.convolved is None or not op.convolved.turned:
        return None
    if op.convolved.of == "kernel":
        return -1
    return 1 if is_made_apart(graph, _behind(graph, op.operands[1], (*_VIEWS, *_ROWS))) else None


def _behind(graph: Graph, v: int, names: Collection[str]) -> int:
    """What a value is made of by operations of these names alone."""
    while (producer := graph.producer(v)) is not None and producer.name in names:
        v = producer.operands[0]
    return v


def _kernel(graph: Graph, op: Op) -> tuple[int, bool]:
    """What a convolution's kernel is read of, a stack of layers too, and whether it is reversed; -1 if it is made."""
    v, is_round = op.operands[1], False
    while (producer := graph.producer(v)) is not None and producer.name in _VIEWS:
        v, is_round = producer.operands[0], is_round or producer.name == "stablehlo.reverse"
    producer = graph.producer(_behind(graph, v, (*_VIEWS, "stablehlo.convert")))
    if producer is not None and producer.name == "stablehlo.dynamic_slice" and _is_unchanged(graph, producer):
        return producer.operands[0], is_round
    return (v, is_round) if graph.values[v].producer < 0 else (-1, is_round)


def _is_unchanged(graph: Graph, op: Op) -> bool:
    """Whether a layer is read of a stack that the loop around it hands on."""
    ties = graph.ops[op.parent].ties if op.parent >= 0 else ()
    return any(op.operands[0] in tie and is_invariant(graph.ops[op.parent], tie) for tie in ties)


def _is_kept_twice(graph: Graph, op: Op, is_round: bool) -> bool:
    """Whether a convolution reads its kernel in an order that it does not have."""
    if not is_round:
        return op.convolved is not None and op.convolved.turned
    assert op.rule is not None
    shape, dims = graph.values[op.operands[1]].shape, op.rule.operands[1]
    images, made = ({f for dim in tensor for f in dim} for tensor in (op.rule.operands[0], op.rule.results[0]))
    features = [dim[0] if dim else -1 for dim in dims]
    roles = ["input" if f in images else "output" if f in made else "position" for f in features]
    if all(n == 1 for n, role in zip(shape, roles, strict=True) if role == "position"):
        return False
    # It makes of the output features what others read.
    return next((role for n, role in zip(shape, roles, strict=True) if n > 1), "output") != "input"


def _span(graph: Graph, op: Op) -> tuple[int, int]:
    """From when to when: of what a loop reads, for as long as the loop runs."""
    first = last = op.index
    at = op
    while at.parent >= 0 and at.parent != graph.microbatch_loop:
        at = graph.ops[at.parent]
        if at.name == "stablehlo.while":
            first, last = at.index, at.region_end - 1
    return first, last
