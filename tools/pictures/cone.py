"""The operations of two dense layers, in the cones that share one decision, with what the search decides."""

from __future__ import annotations

from rhino.machine import Cluster
from rhino.program import Graph
from rhino.program.data import Dims, Op
from rhino.report.units import sharding_text
from rhino.sharding import Options, plan_sharding
from rhino.sharding.solution import Solution
from tools.pictures.plans import layer
from tools.pictures.svg import TILES, Svg

NAME = "cone"
_WIDE, _HIGH, _COLUMN, _ROW = 74, 32, 98, 92
_SHORT = {"broadcast_in_dim": "broadcast", "maximum": "max", "dot_general": "dot"}
# Where arguments stand; what is computed stands on the line of its first operand.
_LINES = {"up": 0, "down": 0, "batch": 1, "bias": 2}


def draw() -> str:
    """The picture as SVG."""
    graph, cluster = layer(), Cluster.load("dgx-h100:1")
    found = plan_sharding(graph, cluster, Options())
    problem = found.problem
    ops = [op for op in graph.ops if op.results and problem.node_of[op.results[0]] >= 0]
    places = _places(graph)
    cones = [node for node in problem.nodes if node.kind == "cone"]
    svg = Svg(
        NAME,
        f"Two dense layers as {len(cones)} cones and {len(problem.nodes) - len(cones)} matrix products",
        "Each coloured area is a cone: one decision for all values in it. Products decide for themselves. "
        + " ".join(f"{a.name} {_layout(found, a.value)}." for a in graph.arguments),
    )
    svg.heading(
        20, 32, "relu(batch @ up + bias) @ down", "A coloured area is a cone: all values in it share one decision."
    )
    for i, node in enumerate(cones):
        held = [places[key] for key in _drawn(graph, ops, node.ops, node.members)]
        left, right = min(x for x, _ in held) - 9, max(x for x, _ in held) + _WIDE + 9
        top, low = min(y for _, y in held) - 9, max(y for _, y in held) + _HIGH + 26
        svg.box(left, top, right - left, low - top, TILES[i], 8)
        svg.text((left + right) / 2, low - 8, _layout(found, node.members[0]), "mono small", "middle")
    moved = {reader: _gathered(found, copy.value, stops) for copy, stops in found.copies() for reader in copy.readers}
    for op in ops:
        for slot, operand in enumerate(op.operands):
            key = _key(graph, ops, operand)
            if key in places:
                _arrow(svg, places[key], places["op", op.index], (op.index, slot) in moved)
                if (op.index, slot) in moved:
                    _told(svg, places["op", op.index], moved[op.index, slot])
    for value in graph.outputs:
        last = next(op for op in ops if value in op.results)
        told = _reduced(found, last.index, value)
        _arrow(svg, places["op", last.index], places["result", value], bool(told))
        if told:
            _told(svg, places["op", last.index], told)
    for argument in graph.arguments:
        _node(svg, places["argument", argument.value], argument.name)
    for op in ops:
        name = op.name.removeprefix("stablehlo.")
        _node(svg, places["op", op.index], _SHORT.get(name, name), op.name.endswith("dot_general"))
    for value in graph.outputs:
        _node(svg, places["result", value], "result")
    mesh = " and ".join(f"{axis}={size}" for axis, size in found.mesh)
    low = svg.bottom + 30
    svg.text(20, low, f"Planned for {cluster.name} on the mesh {mesh}. Below each cone: what the axes split.", "soft")
    svg.text(
        20, low + 18, "Data moves along the red arrows only, where a product needs or makes another layout.", "soft"
    )
    return str(svg)


def _key(graph: Graph, ops: list[Op], value: int) -> tuple[str, int]:
    if any(argument.value == value for argument in graph.arguments):
        return "argument", value
    return "op", next((op.index for op in ops if value in op.results), -1)


def _drawn(graph: Graph, ops: list[Op], inside: list[int], members: list[int]) -> list[tuple[str, int]]:
    """The boxes of a cone: its operations, and arguments and results that are members of it."""
    shown = {op.index for op in ops}
    keys = [("op", index) for index in inside if index in shown]
    keys += [("argument", a.value) for a in graph.arguments if a.value in members]
    keys += [("result", value) for value in graph.outputs if value in members and not keys]
    return keys


def _places(graph: Graph) -> dict[tuple[str, int], tuple[float, float]]:
    """The corner of each box: a column by the longest way to it, arguments one before their first reader."""
    names = {argument.value: argument.name for argument in graph.arguments}
    column: dict[int, int] = {}
    line = {value: _LINES[name] for value, name in names.items()}
    at: dict[tuple[str, int], tuple[int, int]] = {}
    for op in graph.ops:
        read = [v for v in op.operands if v in line]
        if not read:
            continue
        depth = 1 + max(column.get(v, 0) for v in read)
        for value in op.results:
            column[value], line[value] = depth, line[read[0]]
        at["op", op.index] = depth, line[read[0]]
        for value in read:
            if value in names:
                at.setdefault(("argument", value), (depth - 1, line[value]))
    for value in graph.outputs:
        at["result", value] = column[value] + 1, line[value]
    return {key: (29 + _COLUMN * c, 82 + _ROW * row) for key, (c, row) in at.items()}


def _layout(found: Solution, value: int) -> str:
    dims = found.dims(value)
    return sharding_text(dims) if dims else "any"


def _gathered(found: Solution, value: int, stops: tuple[Dims, ...]) -> str:
    """How a value comes into the last of some layouts."""
    return "all-gather" if _axes(stops[-1]) < _axes(found.dims(value)) else "reshard"


def _axes(dims: Dims | None) -> set[str]:
    return {axis for axes in dims or () for axis in axes}


def _reduced(found: Solution, op: int, value: int) -> str:
    """How the partial sums of a product become what is kept; empty where it has none."""
    rule = found.problem.graph.ops[op].rule
    summed = {axis for factor in rule.reduction for axis in found.factors(op)[factor]} if rule else set()
    if not summed:
        return ""
    return "reduce-scatter" if summed <= _axes(found.dims(value)) else "all-reduce"


def _node(svg: Svg, at: tuple[float, float], name: str, heavy: bool = False) -> None:
    svg.box(*at, _WIDE, _HIGH, "card" if heavy else "paper", 16 if heavy else 4)
    svg.label(*at, _WIDE, _HIGH, name, "bold" if heavy else "")


def _arrow(svg: Svg, start: tuple[float, float], end: tuple[float, float], moves: bool) -> None:
    points = (start[0] + _WIDE, start[1] + _HIGH / 2), (end[0], end[1] + _HIGH / 2)
    svg.line(*points, style="mark" if moves else "arrow", arrow=True)


def _told(svg: Svg, at: tuple[float, float], words: str) -> None:
    svg.text(at[0] + _WIDE / 2, at[1] + _HIGH + 18, words, "small", "middle", _COLUMN)
