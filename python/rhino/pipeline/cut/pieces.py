"""Arguments that the step reads in rows, as rhino-split-scans leaves stacked layers: each piece is one of its own.

Owns that view of a graph. A stage keeps the rows it reads, and makes those rows of the result.
"""

from __future__ import annotations

from dataclasses import replace

from rhino.program.data import STATE, Argument, Graph

_SLICE, _JOIN = "stablehlo.slice", "stablehlo.concatenate"


def with_pieces(graph: Graph) -> Graph:
    """The same ops and values, with each slice of an argument that only slices read as an argument in its place."""
    readers: dict[int, list[int]] = {}
    for op in graph.ops:
        for v in op.operands:
            readers.setdefault(v, []).append(op.index)
    joined = {v: op for op in graph.ops if op.name == _JOIN and op.parent < 0 for v in op.results}
    arguments: list[Argument] = []
    for argument in graph.arguments:
        ops = [graph.ops[i] for i in readers.get(argument.value, [])]
        sliced = bool(ops) and all(op.name == _SLICE and op.parent < 0 for op in ops)
        if not sliced or argument.role not in STATE or argument.value in graph.outputs:
            arguments.append(argument)
            continue
        whole = joined.get(graph.outputs[argument.alias]) if argument.alias >= 0 else None
        for n, op in enumerate(ops):
            made = whole is not None and len(whole.operands) == len(ops)
            name = f"{argument.name}[{n}]"
            arguments.append(replace(argument, value=op.results[0], name=name, alias=argument.alias if made else -1))
    return replace(graph, arguments=arguments)


def boundary(graph: Graph) -> frozenset[int]:
    """The slices of arguments and the concatenations of results: no stage computes them."""
    given = {a.value for a in graph.arguments}
    found = [op.index for op in graph.ops if op.name == _SLICE and op.parent < 0 and op.results[0] in given]
    returned = set(graph.outputs)
    read = {v for op in graph.ops for v in op.operands}
    for op in graph.ops:
        if op.name == _JOIN and op.parent < 0 and op.results[0] in returned and op.results[0] not in read:
            found.append(op.index)
    return frozenset(found)


def stacks(graph: Graph) -> list[tuple[int, int]]:
    """(value, dimension) of what is stored row by row: the rows of a stack are on different stages."""
    found = []
    for o in sorted(boundary(graph)):
        op = graph.ops[o]
        whole, row = (op.operands[0], op.results[0]) if op.name == _SLICE else (op.results[0], op.operands[0])
        sizes = zip(graph.values[whole].shape, graph.values[row].shape, strict=True)
        found += [(whole, dim) for dim, (size, part) in enumerate(sizes) if size != part]
    return found
