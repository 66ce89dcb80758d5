"""Writes and reads the arrays of a state inside Orbax: each process its own boxes, in the layout of the user's shapes.

Owns the way between devices and the files of one array. Knows nothing of pytrees and of checkpoints as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rhino.checkpoint._orbax import (
    RANDOM_KEY_IMPL,
    Store,
    ocp,
    reserved_bytes,
    tensorstore,
    type_handlers,
    write_arrays,
    write_shardings,
)
from rhino.checkpoint.boxes import Index, common_grid
from rhino.checkpoint.leaves import AbstractLeaf, LeafPart, abstract_leaf, arrays_of, is_key, key_bits, on_host
from rhino.errors import RhinoError, first_line


@dataclass(frozen=True, slots=True)
class HostLeaf:
    """What this process writes of a leaf, in its host memory. Has the names that Orbax's writer asks for.

    Attributes:
      fragments: boxes of the leaf (`index`) and their elements (`value`).
      local_shape: the chunks of the file: no chunk is written by two processes.
    """

    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    dtype: Any
    fragments: list[Any]
    is_on_host: bool = True

    def to_fragments(self) -> HostLeaf:
        """Itself: the object whose `fragments` are written."""
        return self


@dataclass
class PlaceArgs(type_handlers.RestoreArgs):  # type: ignore[misc]
    """How Orbax is told to restore a leaf onto the devices of a plan."""

    leaf: Any = None
    name: str = ""


class StateArrayHandler(type_handlers.ArrayHandler):  # type: ignore[misc]
    """Orbax's handler of `jax.Array`s, for arrays in any of Rhino's forms and on the devices of any process."""

    def __init__(self) -> None:
        super().__init__(array_metadata_store=Store(), use_replica_parallel=False)

    async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Any = None) -> Sequence[Any]:
        """Copies what this process writes to host memory; returns futures that write it."""
        args = args or [ocp.SaveArgs()] * len(values)
        taken = [_take(value, turn) for turn, value in enumerate(values)]
        for _, _, blocks in taken:
            for _, _, block in blocks:
                if not is_key(block.dtype):
                    block.copy_to_host_async()
        leaves = [_host_leaf(leaf, parts, blocks) for leaf, parts, blocks in taken]
        extended = {
            info.name: {RANDOM_KEY_IMPL: str(jax.random.key_impl(value))}
            for info, value in zip(infos, values, strict=True)
            if is_key(value.dtype)
        }
        # As a program of one device has it: what reads the checkpoint without a target needs no more devices.
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = write_shardings([one] * len(values), infos, primary_host=self._primary_host)
        arrays = write_arrays(
            leaves,
            infos,
            args,
            primary_host=self._primary_host,
            metadata_key=self._metadata_key,
            array_metadata_store=self._array_metadata_store,
            enable_replica_parallel_separate_folder=False,
            use_replica_parallel=False,
            ext_metadata=extended,
        )
        future = ocp.future.CommitFutureAwaitingContractedSignals
        return [future(shardings, name="rhino_shardings"), future(arrays, name="rhino_arrays")]

    async def deserialize(self, infos: Sequence[Any], args: Any = None) -> Sequence[Any]:
        """Reads each leaf that has `PlaceArgs` onto its devices; all others as Orbax does."""
        found: list[Any] = [None] * len(infos)
        ours = [i for i, arg in enumerate(args or ()) if isinstance(arg, PlaceArgs)]
        rest = [i for i in range(len(infos)) if i not in set(ours)]
        if rest:
            plain = await super().deserialize([infos[i] for i in rest], args and [args[i] for i in rest])
            for i, value in zip(rest, plain, strict=True):
                found[i] = value
        values = await _all(self._read(infos[i], args[i]) for i in ours)
        for i, value in zip(ours, values, strict=True):
            found[i] = value
        return found

    async def _read(self, info: Any, arg: PlaceArgs) -> Any:
        spec = type_handlers.get_json_tspec_read(
            info, info.is_ocdbt_checkpoint, self._metadata_key, info.raise_array_data_missing_error
        )
        with _readable(arg.name, info):
            file = await tensorstore.open(tensorstore.Spec(spec), open=True, read=True, context=info.ts_context)
        return arg.leaf.join([await _read_part(_File(file, info, arg), part) for part in arg.leaf.parts])


@dataclass(frozen=True, slots=True)
class _File:
    """An array in a checkpoint, and what is to be made of it."""

    store: Any
    info: Any
    arg: PlaceArgs


async def _all(awaitables: Iterable[Any]) -> list[Any]:
    """Their results, or the first error once all have ended: Orbax closes its loop after an error."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@contextmanager
def _readable(name: str, info: Any) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # whatever tensorstore finds missing or wrong
        raise RhinoError(
            f"{name} cannot be read from {info.parent_dir}: {first_line(error)}",
            "the checkpoint is damaged: restore an earlier one",
        ) from None


def _take(value: Any, turn: int) -> tuple[AbstractLeaf, list[LeafPart], list[tuple[LeafPart, Index, jax.Array]]]:
    """A leaf, its parts where they are, and the blocks of them that this process is to write.

    Args:
      turn: leaves of which many devices have copies are written by these in turn, so that all processes share the work.
    """
    leaf: AbstractLeaf = abstract_leaf(value)
    arrays = arrays_of(value)
    parts = [replace(part, sharding=array.sharding) for part, array in zip(leaf.parts, arrays, strict=True)]
    blocks = []
    for part, array in zip(parts, arrays, strict=True):
        if jax.process_count() > 1 and not array.committed and jax.process_index() > 0:
            continue  # every process has its own copy
        here = {shard.device: shard.data for shard in array.addressable_shards}
        for i, (index, devices) in enumerate(part.blocks().items()):
            owner = devices[(turn + i) % len(devices)]
            if owner in here:
                blocks.append((part, index, here[owner]))
    return leaf, parts, blocks


def _host_leaf(
    leaf: AbstractLeaf, parts: Sequence[LeafPart], blocks: Sequence[tuple[LeafPart, Index, jax.Array]]
) -> HostLeaf:
    bits: tuple[int, ...] = ()
    shape, dtype = leaf.shape, leaf.dtype
    if is_key(dtype):
        physical = key_bits(leaf)
        bits, dtype = physical.shape[len(shape) :], physical.dtype
    fragments = []
    for part, index, block in blocks:
        split = on_host(block).reshape(part.window.split(index) + bits)
        for box, select in part.window.boxes(index):
            fragments.append(SimpleNamespace(index=box + tuple(slice(0, n) for n in bits), value=split[select]))
    chunks = common_grid([part.window for part in parts], [part.block_shape for part in parts])
    return HostLeaf(shape + bits, chunks + bits, np.dtype(dtype), fragments)


async def _read_part(file: _File, part: LeafPart) -> jax.Array:
    """One of a leaf's arrays; each block that is here is read once, and put on each of its devices."""
    here = [(index, [d for d in devices if d.process_index == jax.process_index()])
            for index, devices in part.blocks().items()]  # fmt: skip
    placed = await _all(_read_block(file, part, index, devices) for index, devices in here if devices)
    by_device = {device: array for arrays in placed for device, array in arrays.items()}
    # In the sharding's own order: arrays of keys are not sorted by jax.
    local = [by_device[d] for d in part.sharding.devices_indices_map(part.window.stored) if d in by_device]
    dtype = file.arg.leaf.dtype
    return jax.make_array_from_single_device_arrays(part.window.stored, part.sharding, local, dtype=dtype)


async def _read_block(file: _File, part: LeafPart, index: Index, devices: Sequence[Any]) -> dict[Any, jax.Array]:
    leaf, store = file.arg.leaf, file.store
    physical = key_bits(leaf) if is_key(leaf.dtype) else leaf
    bits = physical.shape[len(leaf.shape) :]
    shape = tuple(high - low for low, high in index) + bits
    dtype = np.dtype(physical.dtype)
    if store.dtype.numpy_dtype != dtype:
        store = tensorstore.cast(store, dtype)  # 64-bit numbers of Python and numpy, as jax narrows them
    async with reserved_bytes(file.info.byte_limiter, prod(shape) * dtype.itemsize):
        block = np.empty(shape, dtype)
        split = block.reshape(part.window.split(index) + bits)
        reads = []
        for box, select in part.window.boxes(index):
            source = store[box + tuple(slice(0, n) for n in bits)]
            reads.append(tensorstore.array(split[select]).write(source[tensorstore.d[:].translate_to[0]]))
        with _readable(file.arg.name, file.info):
            await _all(reads)
        return {device: _put(block, device, part.sharding.memory_kind, leaf.dtype) for device in devices}


def _put(block: np.ndarray[Any, Any], device: Any, memory_kind: str | None, dtype: Any) -> jax.Array:
    array = jax.device_put(block, jax.sharding.SingleDeviceSharding(device, memory_kind=memory_kind))
    if not is_key(dtype):
        return array
    return jax.random.wrap_key_data(array, impl=jax.random.key_impl(jnp.empty((), dtype)))
