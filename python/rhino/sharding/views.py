"""Equal views of one value share their dimensions: what every layer reshapes alike is one choice, not one per layer.

A reshape leaves dimensions that belong to no dimension of what it reads: tokens in groups, say. Owns which of them are
the same (docs/design/search.md, "Cones"). Knows no mesh and no costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rhino.program.data import Graph, Op

Dims = tuple[int, ...]


def join_views(
    graph: Graph, reshapes: Sequence[Op], dims: Callable[[int], Dims], join: Callable[[int, int], bool]
) -> None:
    """Joins the dimensions of values that are reshaped alike to, or from, values with the same dimensions.

    Args:
      dims: names of the dimensions of a value.
      join: makes the dimensions of two values of one shape the same, and says whether any were not.
    """
    values = graph.values
    # What was joined makes further views equal: reshapes of reshapes.
    changed = True
    while changed:
        changed = False
        first: dict[tuple[Dims, Dims, Dims], int] = {}
        for op in reshapes:
            ends = op.operands[0], op.results[0]
            for seen, view in (ends, ends[::-1]):
                key = values[seen].shape, dims(seen), values[view].shape
                changed = join(first.setdefault(key, view), view) or changed
