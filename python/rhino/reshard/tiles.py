"""Which slice of a tensor each device of a mesh has, from specs such as "S0,R,R".

Owns how specs are written and how sizes that do not divide are cut. Knows nothing about networks and programs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from rhino.errors import RhinoError
from rhino.reshard.data import Tile

_DIMENSION = re.compile(r"R|S[0-9]+")


def parse_spec(text: str) -> tuple[str, ...]:
    """The dimensions of a spec written "S0,R,S12": R is replicated, S12 split over mesh axes 1 (major) and 2.

    An empty text is the spec of a scalar. RhinoError if a dimension is neither.
    """
    spec = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    for dim, part in enumerate(spec):
        _check_dimension(part, dim, text)
    return spec


def spec_tiles(
    shape: Sequence[int], mesh_shape: Sequence[int], spec: Sequence[str], first_device: int = 0
) -> tuple[Tile, ...]:
    """The tile of every device of a mesh, row-major, devices numbered from `first_device`.

    A dimension of size n split p ways has tiles of ceil(n / p), the last ones shorter or empty, as JAX and GSPMD pad.

    Args:
      spec: per dimension "R", "S0", "S1", "S01": mesh axes, major first (see `parse_spec`).

    Raises:
      RhinoError: another rank than the tensor's, an axis used twice, or one that the mesh does not have.
    """
    text = ",".join(spec)
    if len(spec) != len(shape):
        raise RhinoError(
            f"spec {text}: {len(spec)} dimensions, but the tensor has {len(shape)}", "give R, S0, .. for each dimension"
        )
    if not mesh_shape or min(mesh_shape) < 1:
        raise RhinoError(f"mesh {tuple(mesh_shape)}: no devices", "give a mesh shape of positive sizes")
    axes_of = [_axes(part, dim, text, len(mesh_shape)) for dim, part in enumerate(spec)]
    used = [axis for axes in axes_of for axis in axes]
    for axis in used:
        if used.count(axis) > 1:
            raise RhinoError(f"spec {text}: mesh axis {axis} is used twice", "split each axis over one dimension only")
    tiles = []
    for at, place in enumerate(product(*(range(size) for size in mesh_shape))):
        slices = []
        for size, axes in zip(shape, axes_of, strict=True):
            part = 0
            for axis in axes:
                part = part * mesh_shape[axis] + place[axis]
            width = -(-size // prod(mesh_shape[axis] for axis in axes))
            slices.append((min(part * width, size), min((part + 1) * width, size)))
        tiles.append(Tile(first_device + at, tuple(slices)))
    return tuple(tiles)


def _check_dimension(part: str, dim: int, text: str) -> None:
    if not _DIMENSION.fullmatch(part):
        raise RhinoError(
            f"spec {text}: dimension {dim}: {part!r} is no layout", "write R, or S and the mesh axes, such as S0 or S01"
        )


def _axes(part: str, dim: int, text: str, mesh_rank: int) -> tuple[int, ...]:
    _check_dimension(part, dim, text)
    axes = tuple(int(digit) for digit in part[1:])
    for axis in axes:
        if axis >= mesh_rank:
            raise RhinoError(
                f"spec {text}: dimension {dim}: mesh axis {axis}, but the mesh has {mesh_rank} axes",
                f"use axes 0 to {mesh_rank - 1}",
            )
    return axes
