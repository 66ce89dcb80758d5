"""How a value lies on a group of devices: which axes of the group's mesh split it, and what each host then needs of it.

Owns that count. Knows neither clusters nor seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, prod


@dataclass(frozen=True, slots=True)
class Spread:
    """A value on a group: `mesh` has the sizes of the group's axes, outermost first, `split` whether each splits it.

    Axes that do not split it hold copies. Devices of the group are consecutive, row-major over the axes.
    """

    mesh: tuple[int, ...]
    split: tuple[bool, ...]

    @property
    def tiles(self) -> int:
        """Parts the value is split in."""
        return prod(n for n, split in zip(self.mesh, self.split, strict=True) if split)

    def weight(self, width: int) -> float:
        """How much longer it takes to bring than a value that each part of so many devices needs an equal share of."""
        return need_of(self, width).share * ceil(prod(self.mesh) / width)


@dataclass(frozen=True, slots=True)
class Need:
    """What parts of a group need of a value: the largest share, and the most parts that need one and the same tile."""

    share: float
    readers: int


@cache
def need_of(spread: Spread, width: int) -> Need:
    """Of the parts of a group of so many consecutive devices each, such as hosts."""
    parts: list[dict[int, None]] = []
    for device in range(prod(spread.mesh)):
        if device % width == 0:
            parts.append({})
        tile, left = 0, device
        stride = 1
        for size, split in zip(reversed(spread.mesh), reversed(spread.split), strict=True):
            left, at = divmod(left, size)
            if split:
                tile += at * stride
                stride *= size
        parts[-1][tile] = None
    readers = [0] * spread.tiles
    for part in parts:
        for tile in part:
            readers[tile] += 1
    return Need(max(map(len, parts)) / spread.tiles, max(readers))
