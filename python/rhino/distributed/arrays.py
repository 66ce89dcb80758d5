"""Arrays over the devices of several processes, made from what each process has.

Owns placing values that every process has, and making results readable by all. Knows nothing of plans.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def put(value: Any, sharding: Any, aval: Any = None) -> jax.Array:
    """As `jax.device_put`, where the sharding may have devices of other processes, too.

    Every process must call it, with the same value: an array of the host or of its own devices, of which it takes the
    parts of its devices, or one over the devices of several processes. No values go between processes in the first
    case. Where none of the sharding's devices are here, the result is an array without parts here.

    Args:
      aval: whose dtype the result has; by default the value's.
    """
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        if value.sharding.is_equivalent_to(sharding, value.ndim):
            return value
        if value.is_fully_replicated and value.sharding.device_set != sharding.device_set:
            return put(_here(value), sharding)
        return _resharded(sharding)(value)
    if sharding.is_fully_addressable:
        placed: jax.Array = jax.device_put(value, sharding)
        return placed
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        bits = put(jax.random.key_data(value), NamedSharding(sharding.mesh, PartitionSpec()))
        return _keys(str(jax.random.key_impl(value)), sharding)(bits)
    array = np.asarray(value, None if aval is None else aval.dtype)
    array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index], dtype=array.dtype)


def everywhere(tree: Any, mesh: Mesh) -> Any:
    """The pytree with arrays that this process has whole on every device of the mesh; all else as it is."""
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: put(leaf, whole) if isinstance(leaf, jax.Array | np.ndarray) else leaf, tree)


def replicate(array: Any) -> Any:
    """The array whole on each of its devices, so that every process that has one of them can read it."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return array
    return _resharded(NamedSharding(array.sharding.mesh, PartitionSpec()))(array)


def _here(array: jax.Array) -> Any:
    """A value that each device has whole, as this process's first device has it."""
    return array.addressable_data(0)


@cache
def _resharded(sharding: Any) -> Callable[[Any], jax.Array]:
    def reshard(array: Any) -> Any:
        return array

    return jax.jit(reshard, out_shardings=sharding)


@cache
def _keys(impl: str, sharding: Any) -> Callable[[Any], jax.Array]:
    def wrap(bits: Any) -> Any:
        return jax.random.wrap_key_data(bits, impl=impl)

    return jax.jit(wrap, out_shardings=sharding)
