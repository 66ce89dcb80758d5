"""Which boxes of an array a shard holds, when the array is stored with dimensions cut into factors or in windows.

Owns this arithmetic on shapes and indices. Knows neither jax nor Orbax, nor where anything is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import Any

from rhino.plan.strided import factors_of

# [start, stop) per dimension.
Index = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A part of an array that is stored as one array of its own, perhaps with dimensions cut into factors.

    Attributes:
      start: where it begins in the whole array, per dimension.
      shape: of the part, as the user sees it.
      stored: of the array that holds it: `shape` with dimensions cut into factors, row-major.
    """

    start: tuple[int, ...]
    shape: tuple[int, ...]
    stored: tuple[int, ...]

    def boxes(self, index: Index) -> Iterator[tuple[tuple[slice, ...], tuple[Any, ...]]]:
        """Where the block `index` of the stored array belongs in the whole one.

        Yields:
          The box of the whole array, and what selects its elements from the block once that has `self.split(index)`'s
          shape.
        """
        dims = [self._runs(group, index) for group in self._groups()]
        for chosen in product(*(range(len(starts)) for starts, _ in dims)):
            lows = [low + dims[d][0][run] for d, (low, run) in enumerate(zip(self.start, chosen, strict=True))]
            box = tuple(slice(low, low + length) for low, (_, length) in zip(lows, dims, strict=True))
            yield box, (*(part for run in chosen for part in (run, slice(None))), ...)

    def split(self, index: Index) -> tuple[int, ...]:
        """The shape of a block in which each box is one index: per dimension its runs and their length."""
        found: list[int] = []
        for group in self._groups():
            starts, length = self._runs(group, index)
            found += [len(starts), length]
        return tuple(found)

    def grid(self, block: Sequence[int]) -> tuple[int, ...]:
        """Per dimension of the whole array, a length that divides all starts and stops of blocks of this shape.

        0 for a dimension without elements. Every device has a block of the same shape, so that one says it for all.
        """
        index = tuple((0, size) for size in block)
        lengths = [self._runs(group, index)[1] for group in self._groups()]
        return tuple(gcd(length, start) for length, start in zip(lengths, self.start, strict=True))

    def _groups(self) -> tuple[tuple[int, ...], ...]:
        groups = factors_of(self.shape, self.stored)
        if groups is None:
            raise ValueError(f"{self.stored} is not {self.shape} with dimensions cut into factors")
        return groups

    def _runs(self, group: tuple[int, ...], index: Index) -> tuple[list[int], int]:
        """Starts and length of the contiguous runs of one dimension that a block of its factors covers."""
        cut = len(group) - 1
        while cut > 0 and index[group[cut]] == (0, self.stored[group[cut]]):
            cut -= 1
        inner = prod(self.stored[dim] for dim in group[cut + 1 :])
        low, high = index[group[cut]]
        starts = [0]
        for dim in group[:cut]:
            starts = [start * self.stored[dim] + i for start in starts for i in range(*index[dim])]
        return [(start * self.stored[group[cut]] + low) * inner for start in starts], (high - low) * inner


def common_grid(windows: Sequence[Window], blocks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The largest chunks of the whole array of which each is written from one block of one window only."""
    grids = [window.grid(block) for window, block in zip(windows, blocks, strict=True)]
    return tuple(max(1, gcd(*sizes)) for sizes in zip(*grids, strict=True))
