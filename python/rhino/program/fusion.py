"""Which values XLA really writes to memory, and which share one buffer: the part of fusion that time and memory need.

Owns two linear sweeps over a graph: element-wise values live only inside fusions, unless something that cannot fuse (a
dot, a loop, the caller) reads them. `XLA: elementwise-fused, elementwise-made-again`. Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from rhino.program.data import Graph, Op, once
from rhino.program.fusible import UNFUSIBLE, is_fusible
from rhino.program.orders import copied_stacks, transposed

# A reduction or a gather fuses its input; these read memory. XLA: dots-read-memory
_READS_MEMORY = UNFUSIBLE - {"stablehlo.reduce", "stablehlo.dynamic_update_slice", "stablehlo.gather"}
IN_PLACE = ("stablehlo.dynamic_update_slice", "stablehlo.scatter")


@once
def materialised(graph: Graph) -> Sequence[bool]:
    """For each value, whether it gets memory of its own."""
    real = [True] * len(graph.values)
    constants = splats(graph)
    late = absorbed(graph)
    for op in graph.ops:
        if is_fusible(op) or op.index in late:
            for v in op.results:
                real[v] = False
    for op in graph.ops:
        if op.name in _READS_MEMORY or op.kernel is not None:
            for v in op.operands[op.index in late :]:
                real[v] = True
    for v in (*late.values(), *transposed(graph)):
        real[v] = True
    for op in graph.ops:
        for tie in op.ties:
            # XLA: constants-sink-into-loops
            for v in tie:
                real[v] = not (is_invariant(op, tie) and tie[0] in constants)
    for v in graph.outputs:
        real[v] = True
    # Constants and scalars are folded into their readers whoever reads them.
    for op in graph.ops:
        if op.name == "stablehlo.constant" and op.tag == "splat":
            real[op.results[0]] = False
    return real


@once
def absorbed(graph: Graph) -> Mapping[int, int]:
    """Scatters that add to what is added to something else, by index, each with the value they work on in the end.

    `XLA: scatters-absorbed`, behind all further sums and transpositions: the gradient of a cross-entropy by labels is
    one buffer, not one for each of its parts.
    """
    if not any(op.name == "stablehlo.scatter" for op in graph.ops):
        return {}
    users = graph.users()
    returned = set(graph.outputs)
    found: dict[int, int] = {}
    for op in graph.ops:
        if op.name != "stablehlo.scatter" or op.tag != "add" or op.kernel is not None:
            continue
        v, summed = op.results[0], False
        while v not in returned and len(users[v]) == 1:
            reader = graph.ops[users[v][0]]
            if reader.parent != op.parent or reader.name not in ("stablehlo.add", "stablehlo.transpose"):
                break
            v, summed = reader.results[0], summed or reader.name == "stablehlo.add"
        if summed:
            found[op.index] = v
    return found


def is_invariant(op: Op, tie: tuple[int, ...]) -> bool:
    """Whether a loop hands a carried value on unchanged: (operand, cond argument, body argument, yielded, result)."""
    return op.name == "stablehlo.while" and tie[2] == tie[3]


@once
def splats(graph: Graph) -> AbstractSet[int]:
    """Values whose elements are all one constant."""
    found: set[int] = set()
    for op in graph.ops:
        if (op.name == "stablehlo.constant" and op.tag == "splat") or (
            op.name == "stablehlo.broadcast_in_dim" and op.operands[0] in found
        ):
            found.add(op.results[0])
    return found


@once
def buffers(graph: Graph) -> Sequence[int]:
    """For each value, the one whose buffer it uses: loop carries, barriers, updates share their operand's.

    `XLA: updates-in-place`, but for a stack that is transposed on its way into a loop (`orders.copied_stacks`).
    """
    owner = list(range(len(graph.values)))
    # The caller's. XLA: updates-copy-what-is-kept
    kept = {a.value for a in graph.arguments if not a.donated}
    # All that a loop carries and starts with one constant, such as zeros, is memory of its own.
    constants = (op.results[0] for op in graph.ops if op.name == "stablehlo.constant")
    kept |= {v for v in constants if graph.values[v].shape}
    copied = copied_stacks(graph)
    for op in graph.ops:
        for position, tie in enumerate(op.ties):
            if (op.index, position) in copied:
                for v in tie[1:]:
                    owner[v] = tie[1]
                continue
            changed = op.name == "stablehlo.while" and not is_invariant(op, tie)
            # A loop in another one starts each time with what that one does not change: with a copy, too.
            outer = graph.values[tie[0]].loop != graph.values[tie[-1]].loop
            root = tie[1] if changed and (outer or owner[tie[0]] in kept) else owner[tie[0]]
            for v in tie[1:]:
                owner[v] = root
        if op.name in IN_PLACE and owner[op.operands[0]] not in kept:
            owner[op.results[0]] = owner[op.operands[0]]
    return owner
