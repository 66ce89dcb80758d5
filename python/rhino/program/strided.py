"""Which classes of dimensions to split into chunks, and into how many. Pure data: knows no MLIR.

Owns the rules. A class is all the dimensions that elements flow through one to one: a dimension of a weight, of the
activations made with it, of its gradient and of its moments. *Pieces* are the parts of it that slices take out and that
concatenations and paddings put in. Where the pieces cover the class and are of one length, that is its chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd


@dataclass(frozen=True, slots=True)
class ClassPiece:
    """The part [start, stop) of a class, as elements, which is the whole of class `child` elsewhere."""

    start: int
    stop: int
    child: int

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Another class that leads the same elements: one step of ours is `stride` elements, one of theirs `their_stride`.

    [3 * 8] reshaped to [3, 8]: strides 1 and 8.
    """

    other: int
    stride: int
    their_stride: int


@dataclass(slots=True)
class DimClass:
    """The facts about one class.

    `arguments` are the (argument, dimension) pairs of @main in it that can be stored split. `weight`: whether a
    contraction reads it as a dimension of a parameter. `obstacle`: why it cannot be split, if so.
    """

    size: int
    pieces: list[ClassPiece] = field(default_factory=list)
    reshaped: list[Reshaped] = field(default_factory=list)
    arguments: list[tuple[int, int]] = field(default_factory=list)
    weight: bool = False
    obstacle: str = ""


@dataclass(slots=True)
class Choice:
    """Per class the number of chunks it is split into, 0 to leave it, and why it is left although it has chunks."""

    chunks: list[int]
    refusals: dict[int, str]


def choose(classes: list[DimClass], max_chunks: int) -> Choice:
    """Decides for all classes. Deterministic; linear in pieces and reshapes, times the depth of nested splits."""
    lengths = _chunk_lengths(classes, max_chunks)
    problems = [_problem(c, lengths, k, classes, max_chunks) for k, c in enumerate(classes)]
    chunks = [0] * len(classes)
    refusals: dict[int, str] = {}
    for members in _components(classes, lengths):
        reached = [k for k in members if _reaches_weight(classes, lengths, k)]
        if not reached:
            continue
        problem = next((problems[k] for k in members if problems[k]), "")
        for k in members:
            if problem:
                if classes[k].arguments:
                    refusals[k] = problem
            else:
                chunks[k] = classes[k].size // lengths[k]
    return Choice(chunks, refusals)


def _covered(c: DimClass) -> bool:
    """Whether the pieces leave nothing out."""
    reach = 0
    for piece in sorted(c.pieces, key=lambda p: p.start):
        if piece.start > reach:
            return False
        reach = max(reach, piece.stop)
    return bool(c.pieces) and reach == c.size


def _own_length(c: DimClass) -> int:
    length = c.size
    for piece in c.pieces:
        length = gcd(length, piece.start, piece.stop)
    return length


def _chunk_lengths(classes: list[DimClass], max_chunks: int) -> list[int]:
    """Elements in a chunk of each class, 0 where nothing says that it has chunks."""
    lengths = [_own_length(c) if _covered(c) else 0 for c in classes]
    changed = [k for k, length in enumerate(lengths) if length]
    while changed:
        _spread(classes, lengths, changed)
        changed = _refine(classes, lengths, max_chunks)
    return lengths


def _spread(classes: list[DimClass], lengths: list[int], pending: list[int]) -> None:
    """Carry chunks over reshapes, in both directions."""
    while pending:
        k = pending.pop()
        for link in classes[k].reshaped:
            elements = lengths[k] * link.stride
            other = link.other
            if elements % link.their_stride:
                continue
            length = gcd(lengths[other] or _own_length(classes[other]), elements // link.their_stride)
            if length != lengths[other] and length < classes[other].size:
                lengths[other] = length
                pending.append(other)


def _refine(classes: list[DimClass], lengths: list[int], max_chunks: int) -> list[int]:
    """A class whose every piece is itself in chunks of one length is in these. Returns the classes changed."""
    changed = []
    for k in sorted(range(len(classes)), key=lambda k: (classes[k].size, k)):
        if not lengths[k] or not classes[k].pieces:
            continue
        length = lengths[classes[k].pieces[0].child]
        alike = all(lengths[p.child] == length for p in classes[k].pieces)
        finer = 1 < length < lengths[k] and lengths[k] % length == 0
        if alike and finer and classes[k].size // length <= max_chunks:
            lengths[k] = length
            changed.append(k)
    return changed


def _split(classes: list[DimClass], lengths: list[int], k: int) -> bool:
    """Whether splitting the class changes anything: a class in chunks of one element is explicit already."""
    return 1 < lengths[k] < classes[k].size


def _problem(c: DimClass, lengths: list[int], k: int, classes: list[DimClass], max_chunks: int) -> str:
    """Why a class with chunks cannot be split, or nothing."""
    if not _split(classes, lengths, k):
        return ""
    if c.obstacle:
        return c.obstacle
    for piece in c.pieces:
        if piece.length != lengths[k] and lengths[piece.child] != lengths[k]:
            sizes = sorted({p.length for p in c.pieces})
            return f"it is cut into pieces of {' and '.join(map(str, sizes))}, not into equal chunks"
    if c.size // lengths[k] > max_chunks:
        return f"it is cut into {c.size // lengths[k]} chunks, more than {max_chunks}"
    return ""


def _components(classes: list[DimClass], lengths: list[int]) -> list[list[int]]:
    """Classes that are split together or not at all."""
    links: list[list[int]] = [[] for _ in classes]
    for k, c in enumerate(classes):
        if not _split(classes, lengths, k):
            continue
        others = [r.other for r in c.reshaped] + [p.child for p in c.pieces if p.length > lengths[k]]
        for other in others:
            if _split(classes, lengths, other):
                links[k].append(other)
                links[other].append(k)
    found = []
    seen = [False] * len(classes)
    for first in range(len(classes)):
        if seen[first] or not _split(classes, lengths, first):
            continue
        seen[first] = True
        members = [first]
        for k in members:
            for other in links[k]:
                if not seen[other]:
                    seen[other] = True
                    members.append(other)
        found.append(sorted(members))
    return found


def _reaches_weight(classes: list[DimClass], lengths: list[int], k: int) -> bool:
    """Whether the class is a dimension of a weight, or is what an already explicit dimension of one is merged into."""
    near = [k] + [r.other for r in classes[k].reshaped if lengths[r.other] == 1]
    return any(classes[j].arguments and classes[j].weight for j in near)
