"""`ArrayLike`: what an array needs besides its values to pass for a `jax.Array` that a plan keeps in another form.

Owns everything that only forwards to the plain array. Knows no form that an array is kept in.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def _method(name: str) -> Callable[..., Any]:
    def method(self: ArrayLike, *args: Any) -> Any:
        return getattr(self.original(), name)(*args)

    method.__name__ = name
    return method


class ArrayLike:
    """The base of arrays kept otherwise than the user sees them. Register subclasses with `register_array_type`."""

    __slots__ = ()
    __array_priority__ = 100  # a numpy array on the left of an operator leaves it to this class
    __hash__ = None  # type: ignore[assignment]  # as jax.Array: equality is by element

    @abstractmethod
    def original(self) -> jax.Array:
        """The plain array. Made anew in each call."""

    @property
    @abstractmethod
    def aval(self) -> Any:
        """Shape, dtype and weak typing, as jax keeps them."""

    @property
    @abstractmethod
    def sharding(self) -> Any:
        """The sharding that `original()` has."""

    @abstractmethod
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...

    @abstractmethod
    def __copy__(self) -> ArrayLike: ...

    # --- what an array says of itself, without making one -----------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The original shape."""
        shape: tuple[int, ...] = self.aval.shape
        return shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.aval.dtype

    @property
    def weak_type(self) -> bool:
        """Whether the type gives way to others."""
        return bool(self.aval.weak_type)

    @property
    def ndim(self) -> int:
        """The number of original dimensions."""
        return len(self.shape)

    @property
    def committed(self) -> bool:
        """Whether it stays on its devices: yes, as all arrays that a step makes."""
        return True

    _committed = committed

    # --- as the original --------------------------------------------------------------------------------------------

    def __jax_array__(self) -> jax.Array:
        return self.original()

    def __getattr__(self, name: str) -> Any:
        # Only for what the class does not define: reductions, `at`, `T`, `astype` and all else jax.Array has.
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.original(), name)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self.original())

    def __reduce__(self) -> tuple[Any, ...]:
        # As jax.Array: the values without their place. Reading it back needs neither the plan nor its devices.
        return jnp.asarray, (np.asarray(self),)

    def __deepcopy__(self, memo: Any) -> ArrayLike:
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
