"""`StagedArray`: an array whose rows are kept on the device groups of several stages, and that behaves as one array.

Owns the way between the pieces and the whole. Knows nothing of programs and schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rhino.array_like import ArrayLike
from rhino.compile._jax import register_array_type
from rhino.program.element_types import type_text
from rhino.runtime.arrays import put

# [start, stop) per leading dimension.
Slice = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class PiecesLayout:
    """How an array is kept in pieces.

    Attributes:
      aval: what the user sees, as jax describes arrays.
      slices: of each piece, in rising order; together they are the whole array.
      shardings: of each piece, on its group.
    """

    aval: Any
    slices: tuple[Slice, ...]
    shardings: tuple[Any, ...]

    def piece_shape(self, piece: int) -> tuple[int, ...]:
        """The shape of one piece."""
        leading = tuple(stop - start for start, stop in self.slices[piece])
        return (*leading, *self.aval.shape[len(leading) :])


class StagedArray(ArrayLike):
    """An array kept in pieces, each on the device group of the stage that uses it.

    The parameters of a scan over layers, for example, are one array with a leading dimension of layers, of which each
    stage of a pipeline has its rows. `rhino.parallelize`'s steps make such arrays, and take them at no cost.

    To everything else it is a leaf of a pytree with the shape and values of the whole, as a `StridedArray` is:
    operations work on the `jax.Array` that `original()` returns, which has all rows on the first piece's devices.

    Attributes:
      pieces: the `jax.Array` of each piece. Deleted, like any other, once it is donated.
    """

    __slots__ = ("__weakref__", "_layout", "pieces")

    def __init__(self, pieces: Sequence[jax.Array], layout: PiecesLayout) -> None:
        self.pieces = tuple(pieces)
        self._layout = layout

    @property
    def layout(self) -> PiecesLayout:
        """Which rows each piece has, and where it is."""
        return self._layout

    def original(self) -> jax.Array:
        """The whole array on the devices of the first piece. Costs communication, and memory for all of it there.

        Raises:
          RuntimeError: it was donated (jax's own error).
        """
        there = [jax.device_put(piece, self.sharding) for piece in self.pieces]
        return _assemble(jnp.zeros(self.shape, self.dtype, device=self.sharding), there, self._layout.slices)

    @property
    def aval(self) -> Any:
        """Shape, dtype and weak typing of the whole, as jax keeps them."""
        return self._layout.aval

    @property
    def size(self) -> int:
        """The number of elements."""
        return sum(int(piece.size) for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, wherever they are."""
        return sum(int(piece.nbytes) for piece in self.pieces)

    @property
    def sharding(self) -> Any:
        """The sharding that `original()` has: the first piece's. See `pieces[i].sharding`."""
        return self._layout.shardings[0]

    def is_deleted(self) -> bool:
        """Whether it was donated to a step."""
        return any(piece.is_deleted() for piece in self.pieces)

    def delete(self) -> None:
        """Free its memory."""
        for piece in self.pieces:
            piece.delete()

    def block_until_ready(self) -> StagedArray:
        """Wait until it is computed."""
        for piece in self.pieces:
            piece.block_until_ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("a StagedArray is on several device groups: numpy can only have a copy of it")
        whole = np.empty(self.shape, self.dtype if dtype is None else dtype)
        for piece, at in zip(self.pieces, self._layout.slices, strict=True):
            whole[index(at)] = np.asarray(piece)
        return whole

    def __repr__(self) -> str:
        kind = type_text(self.dtype, self.shape)
        state = ", deleted" if self.is_deleted() else ""
        return f"StagedArray({kind} in {len(self.pieces)} pieces{state})"

    def __copy__(self) -> StagedArray:
        return StagedArray([piece.copy() for piece in self.pieces], self._layout)


register_array_type(StagedArray, StagedArray.original)


def index(at: Slice) -> tuple[slice, ...]:
    """A slice as numpy and jax take it."""
    return tuple(slice(start, stop) for start, stop in at)


def cut(leaf: Any, layout: PiecesLayout) -> list[Any]:
    """The pieces of an array of any form, each placed."""
    if isinstance(leaf, StagedArray) and leaf.layout.slices == layout.slices:
        return [put(piece, sharding) for piece, sharding in zip(leaf.pieces, layout.shardings, strict=True)]
    if isinstance(leaf, ArrayLike):
        leaf = leaf.original()
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf, layout.aval.dtype)
    return [put(leaf[index(at)], sharding) for at, sharding in zip(layout.slices, layout.shardings, strict=True)]


def _assemble(whole: jax.Array, pieces: Sequence[jax.Array], slices: Sequence[Slice]) -> jax.Array:
    for piece, at in zip(pieces, slices, strict=True):
        start = [low for low, _ in at] + [0] * (whole.ndim - len(at))
        whole = _put_rows(whole, piece, tuple(start))
    return whole


def _update(whole: jax.Array, piece: jax.Array, start: tuple[int, ...]) -> jax.Array:
    return jax.lax.dynamic_update_slice(whole, piece, start)


_put_rows = jax.jit(_update, static_argnums=2, donate_argnums=0)
