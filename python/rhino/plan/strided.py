"""Shapes stored with dimensions cut into factors: what they mean for the user's shape, and for how that can be split.

Owns this arithmetic on shapes and shardings. Knows neither MLIR nor jax, nor why a dimension is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from rhino.plan.data import Sharding


def factors_of(shape: tuple[int, ...], stored: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """For each dimension of `shape` the dimensions of `stored` that are its factors, major first.

    Returns:
      None if `stored` is not `shape` with dimensions cut. Sizes of 1 may leave a choice: no axis splits those, so any
      will do.
    """
    groups: list[tuple[int, ...]] = []
    at = 0
    for position, size in enumerate(shape):
        start, product = at, 1
        last = position == len(shape) - 1
        while at < len(stored) and (at == start or product < size or (last and stored[at] == 1)):
            product *= stored[at]
            at += 1
        if product != size or at == start:
            return None
        groups.append(tuple(range(start, at)))
    return tuple(groups) if at == len(stored) else None


def original_sharding(shape: tuple[int, ...], stored: tuple[int, ...], sharding: Sharding) -> Sharding:
    """The sharding of the original shape that is nearest to a sharding of the stored one.

    A dimension is split by all the axes that split its factors, in their order: into parts that are contiguous, and so
    may be other elements than the stored parts, but as many, hence as large. Each factor is divisible by its own axes,
    so the dimension is divisible by all of them.
    """
    groups = factors_of(shape, stored)
    if groups is None:
        raise ValueError(f"{stored} is not {shape} with dimensions cut into factors")
    return tuple(tuple(axis for dim in group for axis in sharding[dim]) for group in groups)


def common_sharding(
    shape: tuple[int, ...], stored: tuple[int, ...], sharding: Sharding, sizes: Mapping[str, int]
) -> Sharding:
    """A sharding of the stored shape, as near as can be to the one given, that the original shape can have as well.

    Between the two, a reshape moves nothing; to and from it, axes only change dimensions, which is an all-to-all. A
    factor can keep its axes if the factors major to it are split to single elements. The axes of other factors go to
    where there is room for them, the major factor of some dimension; without room the tensor is whole over them.

    Args:
      sizes: the number of parts that each axis makes.
    """
    dims: list[tuple[str, ...]] = [()] * len(stored)
    homeless: list[str] = []
    majors: list[int] = []

    def parts(dim: int) -> int:
        return prod(sizes[axis] for axis in dims[dim])

    for group in factors_of(shape, stored) or ():
        majors.append(group[0])
        contiguous = True
        for dim in group:
            if contiguous:
                dims[dim] = sharding[dim]
            else:
                homeless += sharding[dim]
            contiguous = contiguous and parts(dim) == stored[dim]
    # The largest dimension first: it has the most room, and is the least likely to be indexed.
    for axis in homeless:
        room = [dim for dim in majors if stored[dim] % (parts(dim) * sizes[axis]) == 0]
        if room:
            best = max(room, key=lambda dim: (stored[dim] // parts(dim), -dim))
            dims[best] = (*dims[best], axis)
    return tuple(dims)
