"""Arrays of any dtype as unsigned integers and back, bit for bit, so that arrays of several dtypes go in one message.

Owns the encoding. Works inside jitted functions; knows nothing of devices.

Whatever moves elements works on their bits: XLA's CPU backend computes bfloat16 in float32, and some moves of bfloat16
on the way, which changes signalling NaNs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
_WIDEST = 4  # bytes; eight would need jax's 64-bit mode


def word_bytes(sizes: Iterable[int]) -> int:
    """The widest word that divides all these numbers of bytes."""
    common = math.gcd(*sizes, _WIDEST)
    return next(width for width in sorted(_UNSIGNED, reverse=True) if common % width == 0)


def to_bits(array: jax.Array) -> jax.Array:
    """Unsigned integers in the array's shape; of elements of more than four bytes, and complex ones, several each."""
    dtype = array.dtype
    if dtype == jnp.bool_:
        return array.astype(jnp.uint8)
    if dtype.kind == "c":
        return to_bits(jnp.stack([lax.real(array), lax.imag(array)], axis=-1))
    if (bits := _bits(dtype)) < 8:
        return _as(array, jnp.dtype(f"uint{bits}")).astype(jnp.uint8)
    return _as(array, _UNSIGNED[min(bits // 8, _WIDEST)])


def from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    """The array that `to_bits` made the bits of."""
    dtype = jnp.dtype(dtype)
    if dtype == jnp.bool_:
        return bits.astype(jnp.bool_)
    if dtype.kind == "c":
        parts = from_bits(bits, f"float{dtype.itemsize * 4}")
        return lax.complex(parts[..., 0], parts[..., 1])
    if (width := _bits(dtype)) < 8:
        return _as(bits.astype(f"uint{width}"), dtype)
    return _as(bits, dtype)


def bits_of(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the bits of such an array."""
    return jax.eval_shape(to_bits, jax.ShapeDtypeStruct(shape, dtype))


def to_words(bits: jax.Array, width: int) -> jax.Array:
    """Bits in row-major order as a vector of words of `width` bytes, which must divide the element's."""
    if bits.dtype.itemsize != width:
        # XLA: bitcasts-merge
        bits = lax.bitcast_convert_type(lax.optimization_barrier(bits), _UNSIGNED[width])
    return bits.reshape(-1)


def from_words(words: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """The bits, of this shape and dtype, that `to_words` made the words of."""
    size, width = jnp.dtype(dtype).itemsize, words.dtype.itemsize
    if size == width:
        return words.reshape(shape)
    return lax.optimization_barrier(lax.bitcast_convert_type(words.reshape(*shape, size // width), dtype))


def _as(array: jax.Array, dtype: Any) -> jax.Array:
    return array if array.dtype == dtype else lax.bitcast_convert_type(array, dtype)


def _bits(dtype: Any) -> int:
    return int(jnp.finfo(dtype).bits if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).bits)
