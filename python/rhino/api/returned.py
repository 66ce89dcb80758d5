"""Which results an argument of a step comes back as, as the user's pytrees tell: a part of the arguments is returned
where a part of the results has the same structure, shapes and types.

Owns that comparison of trees. Whether the result is made of the argument, the program tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Types = Sequence[tuple[tuple[int, ...], Any]]


@dataclass(frozen=True, slots=True)
class FlatPlace:
    """The place of a flat argument: `block` numbers the part of the arguments it is in, a tree as large as possible
    that some results are like; `results` are the flat results in its place, none where no results are like the part.
    """

    block: int
    results: tuple[int, ...]


def places(arguments: Sequence[Any], given: Types, results: Any, made: Types) -> tuple[FlatPlace, ...]:
    """The places of all flat arguments, in order.

    Args:
      arguments: the tree of each argument; results: that of the results.
      given, made: (shape, dtype) of each of their leaves.
    """
    alike: dict[Any, list[int]] = {}
    for tree, start in _subtrees(results, 0):
        alike.setdefault((tree, tuple(made[start : start + tree.num_leaves])), []).append(start)
    found: list[FlatPlace] = []
    blocks = 0

    def visit(tree: Any, start: int, block: int) -> None:
        nonlocal blocks
        count = tree.num_leaves
        # A leaf inside of an argument says nothing by itself: a number is like any other.
        starts = () if block >= 0 and _is_leaf(tree) else alike.get((tree, tuple(given[start : start + count])), ())
        if starts or (block < 0 and _is_leaf(tree)):
            found.extend(FlatPlace(blocks, tuple(s + i for s in starts)) for i in range(count))
            blocks += 1
        elif _is_leaf(tree):
            found.append(FlatPlace(block, ()))
        else:
            own, blocks = blocks, blocks + 1
            for child in tree.children():
                visit(child, start, own)
                start += child.num_leaves

    start = 0
    for tree in arguments:
        visit(tree, start, -1)
        start += tree.num_leaves
    return tuple(found)


def _subtrees(tree: Any, start: int) -> Iterator[tuple[Any, int]]:
    """A tree and all trees in it, those without leaves left out, each with its first leaf."""
    if tree.num_leaves:
        yield tree, start
        for child in tree.children():
            yield from _subtrees(child, start)
            start += child.num_leaves


def _is_leaf(tree: Any) -> bool:
    return tree.num_nodes == 1 and bool(tree.num_leaves == 1)
