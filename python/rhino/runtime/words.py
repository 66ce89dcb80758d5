"""Arrays of any dtype as unsigned words and back, bit for bit, so that arrays of several dtypes go in one message.

Owns the encoding. Works inside jitted functions; knows nothing of devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
WIDTHS = (4, 2, 1)  # bytes of a word; eight would need jax's 64-bit mode


def item_bytes(dtype: Any) -> int:
    """Bytes that an element takes in words: those of the dtype, and a whole one for those of less than a byte."""
    return int(jnp.dtype(dtype).itemsize)


def to_words(array: jax.Array, width: int) -> jax.Array:
    """The elements in row-major order as a vector of words of `width` bytes, which must divide the element's."""
    dtype = array.dtype
    if dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    elif dtype.kind == "c":
        array = jnp.stack([lax.real(array), lax.imag(array)], axis=-1)
    elif (bits := _bits(dtype)) < 8:
        array = _as(array, jnp.dtype(f"uint{bits}")).astype(jnp.uint8)
    return _as(array, _UNSIGNED[width]).reshape(-1)


def from_words(words: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """The array that `to_words` made the words of."""
    dtype = jnp.dtype(dtype)
    width = words.dtype.itemsize
    if dtype == jnp.bool_:
        return words.reshape(shape).astype(jnp.bool_)
    if dtype.kind == "c":
        half = jnp.dtype(f"float{dtype.itemsize * 4}")
        parts = from_words(words, (*shape, 2), half)
        return lax.complex(parts[..., 0], parts[..., 1])
    if (bits := _bits(dtype)) < 8:
        return _as(words.reshape(shape).astype(f"uint{bits}"), dtype)
    per_item = item_bytes(dtype) // width
    return _as(words.reshape((*shape, per_item) if per_item > 1 else shape), dtype)


def word_bytes(sizes: Iterable[int]) -> int:
    """The widest word that divides all these numbers of bytes."""
    common = math.gcd(*sizes, WIDTHS[0])
    return next(width for width in WIDTHS if common % width == 0)


def _as(array: jax.Array, dtype: Any) -> jax.Array:
    # One conversion, never two in a row: XLA folds those into one of another shape (jaxlib 0.10.2 and 0.12.0.1).
    return array if array.dtype == dtype else lax.bitcast_convert_type(array, dtype)


def _bits(dtype: Any) -> int:
    return int(jnp.finfo(dtype).bits if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).bits)
