"""`StridedArray`: an array that a plan keeps in another shape than the user's, and that behaves as the user's.

Owns the way of one array between the two shapes. Knows nothing of plans, and nothing of why a dimension is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rhino.array_like import ArrayLike
from rhino.compile._jax import register_array_type
from rhino.distributed.arrays import put
from rhino.program.element_types import type_text


@dataclass(frozen=True, slots=True, eq=False)
class StoredLayout:
    """How one argument or result of a step is stored.

    Attributes:
      aval: what the user sees, as jax describes arrays.
      stored_shape: `aval.shape` with dimensions cut into factors: row-major, so a reshape.
      sharding: of the stored array.
      original_sharding: the nearest sharding of the user's shape; as many bytes per device.
      bridge: two shardings, of the stored and of the user's shape, between which the reshape moves nothing.
    """

    aval: Any
    stored_shape: tuple[int, ...]
    sharding: Any
    original_sharding: Any
    bridge: tuple[Any, Any]


# Functions of the layout, not its methods: jax caches what it compiled by function.


def to_original(array: jax.Array, layout: StoredLayout) -> jax.Array:
    """A stored array reshaped, inside a jitted function, such that no device has it whole."""
    there = jax.lax.with_sharding_constraint(array, layout.bridge[0])
    return jax.lax.with_sharding_constraint(there.reshape(layout.aval.shape), layout.bridge[1])


def to_stored(array: jax.Array, layout: StoredLayout) -> jax.Array:
    """The inverse of `to_original`."""
    there = jax.lax.with_sharding_constraint(array, layout.bridge[1])
    return jax.lax.with_sharding_constraint(there.reshape(layout.stored_shape), layout.bridge[0])


class StridedArray(ArrayLike):
    """An array stored with some dimensions cut into factors, so that each device has its part of every factor.

    A query, key and value matrix of shape (1024, 3072), for example, is stored as (1024, 3, 1024) and split in the last
    dimension: each device has the same columns of the three. `rhino.parallelize`'s steps make such arrays, and take
    them at no cost.

    To everything else it is a leaf of a pytree with the original shape and values: `shape`, `dtype`, indexing,
    arithmetic, `jnp` and `np` functions and `jax.jit` work as on the `jax.Array` that `original()` returns, which each
    of them makes anew. `rhino.original(tree)` does that once for all leaves, for what insists on a `jax.Array`.

    Attributes:
      stored: the `jax.Array` as it is stored. Deleted, like any other, once it is donated.
    """

    __slots__ = ("__weakref__", "_layout", "stored")

    def __init__(self, stored: jax.Array, layout: StoredLayout) -> None:
        if stored.shape != layout.stored_shape:
            raise ValueError(f"the array has shape {stored.shape}, and is to be stored as {layout.stored_shape}")
        self.stored = stored
        self._layout = layout

    def original(self) -> jax.Array:
        """The array in its original shape, split over the same devices into contiguous parts. Costs communication.

        Raises:
          RuntimeError: it was donated (jax's own error).
        """
        reshape = jax.jit(to_original, static_argnums=1, out_shardings=self._layout.original_sharding)
        found: jax.Array = reshape(self.stored, self._layout)
        return found

    # --- what an array says of itself, without making one -----------------------------------------------------------

    @property
    def aval(self) -> Any:
        """Shape, dtype and weak typing, as jax keeps them."""
        return self._layout.aval

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self.stored.size)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, wherever they are."""
        return int(self.stored.nbytes)

    @property
    def sharding(self) -> Any:
        """The sharding that `original()` has: the nearest one of the original shape. See `stored.sharding`."""
        return self._layout.original_sharding

    def is_deleted(self) -> bool:
        """Whether it was donated to a step."""
        return bool(self.stored.is_deleted())

    def delete(self) -> None:
        """Free its memory."""
        self.stored.delete()

    def block_until_ready(self) -> StridedArray:
        """Wait until it is computed."""
        self.stored.block_until_ready()
        return self

    # --- as the original --------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        # The reshape is done on the host, where it is free.
        if copy is False:
            raise ValueError("a StridedArray is on devices: numpy can only have a copy of it")
        return np.asarray(self.stored, dtype).reshape(self.shape)

    def __repr__(self) -> str:
        kind = type_text(self.dtype, self.shape)
        stored = f"[{','.join(map(str, self._layout.stored_shape))}]"
        values = "deleted" if self.is_deleted() else f"sharding={getattr(self.stored.sharding, 'spec', None)}"
        return f"StridedArray({kind} stored as {stored}, {values})"

    def __copy__(self) -> StridedArray:
        return StridedArray(self.stored.copy(), self._layout)


register_array_type(StridedArray, StridedArray.original)


def original(tree: Any) -> Any:
    """The pytree with every array that a plan keeps in another form as the plain `jax.Array`; all else as it is.

    For whatever wants a `jax.Array` and nothing else, such as a checkpoint library. A step takes the result, too.
    """
    return jax.tree.map(lambda leaf: leaf.original() if isinstance(leaf, ArrayLike) else leaf, tree)


def stored(leaf: Any, layout: StoredLayout) -> Any:
    """A leaf of the original shape, on the host or anywhere, or a `StridedArray`, as the layout stores it.

    A `StridedArray` of the same stored shape gives what it holds, wherever that is; all else is reshaped and placed.
    """
    if isinstance(leaf, StridedArray) and leaf.stored.shape == layout.stored_shape:
        return leaf.stored
    if isinstance(leaf, ArrayLike):
        leaf = leaf.original()
    if not isinstance(leaf, jax.Array):
        return put(np.reshape(np.asarray(leaf, layout.aval.dtype), layout.stored_shape), layout.sharding)
    if leaf.sharding.device_set == layout.sharding.device_set:
        return jax.jit(to_stored, static_argnums=1, out_shardings=layout.sharding)(leaf, layout)
    return put(jnp.reshape(leaf, layout.stored_shape), layout.sharding)
