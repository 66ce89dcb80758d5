"""The facts about single dimensions: which are one and the same, cut, reshaped, contracted, or needed whole.

Owns the disjoint sets they are gathered in, and turns them into what `strided_choice` decides from. Knows no operation;
those are in `strided_rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir

from rhino.ir.strided.program import StridedProgram
from rhino.program.disjoint import DisjointSets
from rhino.program.strided import ClassPiece, DimClass, Reshaped


class StridedFlow:
    """Dimensions of all values as nodes of one disjoint-set structure, and what was seen of each.

    Dimension d of value v is node `base[group of v] + d`: values of one group share their nodes.
    """

    def __init__(self, program: StridedProgram) -> None:
        self.program = program
        find = program.groups.find
        self.base: list[int] = []
        total = 0
        for v, shape in enumerate(program.shapes):
            root = find(v)
            if root != v:
                self.base.append(self.base[root])
            else:
                self.base.append(total)
                total += len(shape)
        self.sets = DisjointSets(total)
        self.pieces: list[tuple[int, int, int, int]] = []
        self.reshapes: list[tuple[int, int, int, int]] = []
        self.obstacles: dict[int, str] = {}
        self.contracted: list[int] = []
        self.producers = {r.results[0]: r for r in program.records if r.name == "stablehlo.constant"}
        self.read: dict[Any, Any] = {}

    def node(self, v: int, dim: int) -> int:
        """The node of one dimension of a value."""
        return self.base[v] + dim

    def same(self, a: int, i: int, b: int, j: int) -> None:
        """Dimension i of a is dimension j of b."""
        self.sets.join(self.base[a] + i, self.base[b] + j)

    def piece(self, whole: int, dim: int, start: int, part: int, part_dim: int | None = None) -> None:
        """Dimension `dim` of `part` is the part from `start` on of that of `whole`."""
        j = dim if part_dim is None else part_dim
        stop = start + self.program.shapes[part][j]
        self.pieces.append((self.base[whole] + dim, start, stop, self.base[part] + j))

    def block(self, v: int, dim: int, why: str) -> None:
        """Splitting this dimension would need data to move."""
        self.obstacles.setdefault(self.base[v] + dim, why)

    def block_all(self, values: tuple[int, ...], why: str) -> None:
        """As `block`, for every dimension of the values."""
        for v in values:
            for dim in range(len(self.program.shapes[v])):
                self.block(v, dim, why)

    def attribute(self, op: Any, name: str, read: Callable[[Any], Any]) -> Any:
        """An attribute as plain data; attributes are unique, so each is read once."""
        attribute = op.attributes[name]
        known = self.read.get(attribute)
        if known is None:
            known = self.read[attribute] = read(attribute)
        return known

    def ints(self, op: Any, name: str) -> tuple[int, ...]:
        """An array of integers."""
        found: tuple[int, ...] = self.attribute(op, name, tuple)
        return found

    def constant(self, v: int) -> int | None:
        """The value of a scalar integer constant, None for other values."""
        record = self.producers.get(v)
        if record is None:
            return None
        value = ir.DenseElementsAttr(record.op.attributes["value"])
        return int(ir.IntegerAttr(value.get_splat_value()).value)


def dim_classes(flow: StridedFlow, storable: dict[int, list[int]]) -> tuple[list[DimClass], dict[int, int]]:
    """The classes that are cut, and those reshaped from or to them; and the class of each node's representative.

    Args:
      flow: the facts.
      storable: the dimensions of each argument that may be stored split.
    """
    find = flow.sets.find
    links: dict[int, list[tuple[int, int, int]]] = {}
    for a, stride, b, their_stride in flow.reshapes:
        a, b = find(a), find(b)
        links.setdefault(a, []).append((b, stride, their_stride))
        links.setdefault(b, []).append((a, their_stride, stride))
    sizes = _sizes(flow)
    index: dict[int, int] = {}
    order: list[int] = []

    def visit(root: int) -> int:
        if root not in index:
            index[root] = len(order)
            order.append(root)
        return index[root]

    for whole, _, _, part in flow.pieces:
        visit(find(whole))
        visit(find(part))
    for root in order:  # grows
        for other, _, _ in links.get(root, ()):
            visit(other)
    classes = [DimClass(sizes[root]) for root in order]
    for root, c in zip(order, classes, strict=True):
        c.reshaped = [Reshaped(index[b], stride, theirs) for b, stride, theirs in dict.fromkeys(links.get(root, ()))]
    cuts = dict.fromkeys(
        (index[find(whole)], start, stop, index[find(part)]) for whole, start, stop, part in flow.pieces
    )
    for k, start, stop, child in cuts:
        classes[k].pieces.append(ClassPiece(start, stop, child))
    for node, why in flow.obstacles.items():
        if (at := index.get(find(node))) is not None and not classes[at].obstacle:
            classes[at].obstacle = why
    for node in flow.contracted:
        if (at := index.get(find(node))) is not None:
            classes[at].weight = True
    for argument, dims in storable.items():
        for dim in dims:
            if (at := index.get(find(flow.node(argument, dim)))) is not None:
                classes[at].arguments.append((argument, dim))
    return classes, index


def _sizes(flow: StridedFlow) -> list[int]:
    sizes = [1] * len(flow.sets)
    for v, shape in enumerate(flow.program.shapes):
        base = flow.base[v]
        sizes[base : base + len(shape)] = shape
    return sizes
