"""Leaves of a pipeline's arguments and results as jax has them: PRNG keys, weak types, NumPy's 64 bits.

Owns what the runtime's plain arrays do not say. Knows nothing of stages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rhino.api.trace import is_key
from rhino.compile._jax import key_implementation, weakly_typed
from rhino.distributed.arrays import put
from rhino.runtime.arrays import handle, is_here
from rhino.runtime.staged import StagedArray


def is_plain(aval: Any) -> bool:
    """Whether an array that the runtime makes is what jax would return for this abstract value."""
    return not (is_key(aval) or getattr(aval, "weak_type", False))


def as_user(array: Any, aval: Any) -> Any:
    """An array that the runtime made, as jax would return it: bits of keys as keys, weak types as weak."""
    if is_key(aval):
        bits = array.original() if isinstance(array, StagedArray) else array
        return jax.random.wrap_key_data(_together(bits, len(aval.shape)), impl=key_implementation(aval.dtype))
    if is_plain(aval):
        return array
    if isinstance(array, StagedArray):
        return StagedArray(array.pieces, replace(array.layout, aval=aval))
    return weakly_typed(array)


def as_taken(leaf: Any) -> Any:
    """A leaf as `jax.jit` takes it: NumPy's 64-bit numbers in the types that jax has, unless 64 bits are enabled."""
    if isinstance(leaf, np.ndarray | np.generic):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return leaf if dtype == leaf.dtype else np.asarray(leaf, dtype)
    return leaf


def key_sharding(sharding: NamedSharding, ndim: int) -> NamedSharding:
    """The sharding of an array of keys whose bits have this one: jax keeps the bits of a key together."""
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:ndim]), memory_kind=sharding.memory_kind)


def _together(bits: jax.Array, ndim: int) -> jax.Array:
    """The bits of keys without a split of the dimensions that are inside a key."""
    wanted = key_sharding(bits.sharding, ndim)
    if wanted.is_equivalent_to(bits.sharding, bits.ndim):
        return bits
    if not is_here(bits.sharding.device_set):
        return handle(bits.shape, bits.dtype, wanted)
    return put(bits, wanted)
