"""Layouts over parts of axes, as propagation makes them of reshapes: the parts as axes of their own, in a finer mesh.

Owns that translation of pins. Knows a part by its text, `x:(1)2`: what is before it in the axis, and its size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from rhino.errors import RhinoError
from rhino.program.data import Dims, Graph, Loose

Mesh = tuple[tuple[str, int], ...]

_PART = re.compile(r"(?P<axis>.+):\((?P<before>\d+)\)(?P<size>\d+)")


def with_parts(graph: Graph, mesh: Sequence[tuple[str, int]]) -> tuple[Graph, Mesh]:
    """A program whose pins have whole axes only, and the mesh that has them: the one given where they did already.

    Raises:
      RhinoError: layouts cut an axis in ways that no parts of it meet, as 6 into 2 x 3 and 3 x 2.
    """
    cuts: dict[str, set[int]] = {}
    for _, dims in graph.pins.values():
        for text in (text for axes in dims for text in axes):
            if found := _PART.fullmatch(text):
                before = int(found["before"])
                cuts.setdefault(found["axis"], set()).update((before, before * int(found["size"])))
    if not cuts:
        return graph, tuple(mesh)
    parts: dict[str, list[tuple[str, int]]] = {}
    for axis, size in mesh:
        ends = sorted({1, size, *cuts.get(axis, ())})
        if any(b % a for a, b in pairwise(ends)):
            raise RhinoError(
                f"layouts cut axis '{axis}' of size {size} at {', '.join(map(str, ends))}, where its parts do not meet",
                "give the axis a size that is a power of two, or constrain what is reshaped",
            )
        parts[axis] = [(axis if len(ends) <= 2 else f"{axis}:({a}){b // a}", b // a) for a, b in pairwise(ends)] or [
            (axis, size)
        ]
    pins = {v: (name, _finer(dims, parts)) for v, (name, dims) in graph.pins.items()}
    loose = {
        v: Loose(one.dims, *(tuple(a for axis in axes for a in _axes(axis, parts)) for axes in (one.axes, one.whole)))
        for v, one in graph.loose.items()
    }
    return replace(graph, pins=pins, loose=loose), tuple(part for found in parts.values() for part in found)


def _finer(dims: Dims, parts: Mapping[str, Sequence[tuple[str, int]]]) -> Dims:
    return tuple(tuple(name for text in axes for name in _axes(text, parts)) for axes in dims)


def _axes(text: str, parts: Mapping[str, Sequence[tuple[str, int]]]) -> tuple[str, ...]:
    """The parts that an axis, or a part of one, is made of."""
    found = _PART.fullmatch(text)
    if found is None:
        return tuple(name for name, _ in parts.get(text, ((text, 0),)))
    start, size = int(found["before"]), int(found["size"])
    names = parts[found["axis"]]
    before = [prod(n for _, n in names[:i]) for i in range(len(names))]
    return tuple(name for (name, _), at in zip(names, before, strict=True) if start <= at < start * size)
