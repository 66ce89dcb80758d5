"""Leaves of a pipeline's arguments and results as jax has them: PRNG keys, weak types, NumPy's 64 bits.

Owns what the runtime's plain arrays do not say. Knows nothing of stages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rhino.api_trace import is_key
from rhino.compile._jax import key_implementation, weakly_typed
from rhino.runtime.staged import StagedArray


def is_plain(aval: Any) -> bool:
    """Whether an array that the runtime makes is what jax would return for this abstract value."""
    return not (is_key(aval) or getattr(aval, "weak_type", False))


def as_user(array: Any, aval: Any) -> Any:
    """An array that the runtime made, as jax would return it: bits of keys as keys, weak types as weak."""
    if is_key(aval):
        bits = array.original() if isinstance(array, StagedArray) else array
        return jax.random.wrap_key_data(_whole_words(bits), impl=key_implementation(aval.dtype))
    if is_plain(aval):
        return array
    if isinstance(array, StagedArray):
        return StagedArray(array.pieces, replace(array.layout, aval=aval))
    return weakly_typed(array)


def _whole_words(bits: jax.Array) -> jax.Array:
    """The bits of keys with all words of a key on one device, as jax wants them; a stage may have them split."""
    spec = (*bits.sharding.spec, *[None] * bits.ndim)[: bits.ndim]
    if spec[-1] is None:
        return bits
    return jax.device_put(bits, NamedSharding(bits.sharding.mesh, PartitionSpec(*spec[:-1])))


def as_taken(leaf: Any) -> Any:
    """A leaf as `jax.jit` takes it: NumPy's 64-bit numbers in the types that jax has, unless 64 bits are enabled."""
    if isinstance(leaf, np.ndarray | np.generic):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return leaf if dtype == leaf.dtype else np.asarray(leaf, dtype)
    return leaf
