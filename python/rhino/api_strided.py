"""`StridedArray`: an array that a plan keeps in another shape than the user's, and that behaves as the user's.

Owns the way of one array between the two shapes. Knows nothing of plans, and nothing of why a dimension is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rhino.compile._jax import register_array_type


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
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


def to_original(array: jax.Array, layout: Layout) -> jax.Array:
    """A stored array reshaped, inside a jitted function, such that no device has it whole."""
    there = jax.lax.with_sharding_constraint(array, layout.bridge[0])
    return jax.lax.with_sharding_constraint(there.reshape(layout.aval.shape), layout.bridge[1])


def to_stored(array: jax.Array, layout: Layout) -> jax.Array:
    """The inverse of `to_original`."""
    there = jax.lax.with_sharding_constraint(array, layout.bridge[1])
    return jax.lax.with_sharding_constraint(there.reshape(layout.stored_shape), layout.bridge[0])


def _method(name: str) -> Callable[..., Any]:
    def method(self: StridedArray, *args: Any) -> Any:
        return getattr(self.original(), name)(*args)

    method.__name__ = name
    return method


class StridedArray:
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
    __array_priority__ = 100  # a numpy array on the left of an operator leaves it to this class
    __hash__ = None  # type: ignore[assignment]  # as jax.Array: equality is by element

    def __init__(self, stored: jax.Array, layout: Layout) -> None:
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
    def shape(self) -> tuple[int, ...]:
        """The original shape."""
        shape: tuple[int, ...] = self._layout.aval.shape
        return shape

    @property
    def dtype(self) -> Any:
        """As of the stored array."""
        return self._layout.aval.dtype

    @property
    def weak_type(self) -> bool:
        """As of the stored array."""
        return bool(self._layout.aval.weak_type)

    @property
    def ndim(self) -> int:
        """The number of original dimensions."""
        return len(self.shape)

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

    @property
    def committed(self) -> bool:
        """Whether it stays on its devices: yes, as all arrays that a step makes."""
        return True

    _committed = committed

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

    def __jax_array__(self) -> jax.Array:
        return self.original()

    def __getattr__(self, name: str) -> Any:
        # Only for what this class does not define: reductions, `at`, `T`, `astype` and all else jax.Array has.
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(f"'StridedArray' object has no attribute '{name}'")
        return getattr(self.original(), name)

    def __repr__(self) -> str:
        kind = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        stored = f"[{','.join(map(str, self._layout.stored_shape))}]"
        values = "deleted" if self.is_deleted() else f"sharding={getattr(self.stored.sharding, 'spec', None)}"
        return f"StridedArray({kind} stored as {stored}, {values})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self.original())

    def __reduce__(self) -> tuple[Any, ...]:
        # As jax.Array: the values without their place. Reading it back needs neither the plan nor its devices.
        return jnp.asarray, (np.asarray(self),)

    def __copy__(self) -> StridedArray:
        return StridedArray(self.stored.copy(), self._layout)

    def __deepcopy__(self, memo: Any) -> StridedArray:
        return self.__copy__()

    __getitem__ = _method("__getitem__")
    __bool__ = _method("__bool__")
    __int__ = _method("__int__")
    __float__ = _method("__float__")
    __complex__ = _method("__complex__")
    __index__ = _method("__index__")
    __format__ = _method("__format__")
    __round__ = _method("__round__")
    __neg__ = _method("__neg__")
    __pos__ = _method("__pos__")
    __abs__ = _method("__abs__")
    __invert__ = _method("__invert__")
    __eq__ = _method("__eq__")
    __ne__ = _method("__ne__")
    __lt__ = _method("__lt__")
    __le__ = _method("__le__")
    __gt__ = _method("__gt__")
    __ge__ = _method("__ge__")
    __add__ = _method("__add__")
    __radd__ = _method("__radd__")
    __sub__ = _method("__sub__")
    __rsub__ = _method("__rsub__")
    __mul__ = _method("__mul__")
    __rmul__ = _method("__rmul__")
    __truediv__ = _method("__truediv__")
    __rtruediv__ = _method("__rtruediv__")
    __floordiv__ = _method("__floordiv__")
    __rfloordiv__ = _method("__rfloordiv__")
    __mod__ = _method("__mod__")
    __rmod__ = _method("__rmod__")
    __divmod__ = _method("__divmod__")
    __rdivmod__ = _method("__rdivmod__")
    __pow__ = _method("__pow__")
    __rpow__ = _method("__rpow__")
    __matmul__ = _method("__matmul__")
    __rmatmul__ = _method("__rmatmul__")
    __and__ = _method("__and__")
    __rand__ = _method("__rand__")
    __or__ = _method("__or__")
    __ror__ = _method("__ror__")
    __xor__ = _method("__xor__")
    __rxor__ = _method("__rxor__")
    __lshift__ = _method("__lshift__")
    __rlshift__ = _method("__rlshift__")
    __rshift__ = _method("__rshift__")
    __rrshift__ = _method("__rrshift__")


register_array_type(StridedArray, StridedArray.original)


def original(tree: Any) -> Any:
    """The pytree with every `StridedArray` as the plain `jax.Array` of its original shape; all else as it is.

    For whatever wants a `jax.Array` and nothing else, such as a checkpoint library. A step takes the result, too.
    """
    return jax.tree.map(lambda leaf: leaf.original() if isinstance(leaf, StridedArray) else leaf, tree)


def stored(leaf: Any, layout: Layout) -> Any:
    """A leaf of the original shape, on the host or anywhere, or a `StridedArray`, as the layout stores it.

    A `StridedArray` of the same stored shape gives what it holds, wherever that is; all else is reshaped and placed.
    """
    if isinstance(leaf, StridedArray):
        if leaf.stored.shape == layout.stored_shape:
            return leaf.stored
        leaf = leaf.original()
    if not isinstance(leaf, jax.Array):
        return jax.device_put(np.reshape(np.asarray(leaf, layout.aval.dtype), layout.stored_shape), layout.sharding)
    if leaf.sharding.device_set == layout.sharding.device_set:
        return jax.jit(to_stored, static_argnums=1, out_shardings=layout.sharding)(leaf, layout)
    return jax.device_put(jnp.reshape(leaf, layout.stored_shape), layout.sharding)
