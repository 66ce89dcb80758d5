"""What a host does before and after an exchange: its devices' tiles into its buffer, and the buffer into tiles.

Owns the cutting and joining on one host. Knows nothing of messages, nor of other hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from rhino.reshard.data import Slice, Tensor, Unit
from rhino.runtime.hops import Buffers
from rhino.runtime.words import from_words, to_words

# Per tensor, by number of the device, what the devices of this process have of it.
Shards = Sequence[Mapping[int, jax.Array]]
# Of one tensor, by number of the device, its tiles on devices of this process.
Tiles = dict[int, jax.Array]
_Index = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """One host's part of an edge.

    Attributes:
      number: the host.
      devices: its devices in the edge, by number, ascending.
      port: the one that sends and receives for it.
    """

    number: int
    devices: Mapping[int, Any]
    port: Any


def packer(host: Host, units: Sequence[Unit], tensors: Sequence[Tensor], buffers: Buffers) -> Callable[[Shards], Any]:
    """What makes a host's row of the exchange, `[1, length]` on its port: the units it has, and zeros."""
    given = buffers.given.get(host.number, ())
    by_device: dict[int, list[int]] = {}
    for unit in given:
        by_device.setdefault(_holder(units[unit], host), []).append(unit)
    cuts = [_words_cutter(d, [units[u] for u in chosen], tensors, buffers) for d, chosen in by_device.items()]
    order = [unit for chosen in by_device.values() for unit in chosen]
    ends: list[tuple[int, int]] = []
    for unit in order:
        ends.append((buffers.offsets[host.number][unit], units[unit].nbytes // buffers.width))
    kind = f"uint{8 * buffers.width}"

    def fill(parts: Sequence[jax.Array]) -> jax.Array:
        row = jnp.zeros(buffers.length, kind)
        words, at = jnp.concatenate(parts) if parts else row, 0
        for offset, size in ends:
            row = row.at[offset : offset + size].set(words[at : at + size])
            at += size
        return row[None]

    filled = jax.jit(fill, out_shardings=SingleDeviceSharding(host.port))
    return lambda shards: filled([jax.device_put(cut(shards), host.port) for cut in cuts])


def unpacker(
    host: Host, units: Sequence[Unit], tensors: Sequence[Tensor], dtypes: Sequence[Any], buffers: Buffers
) -> Callable[[Shards, Any, list[Tiles]], None]:
    """What adds the target tiles on a host's devices: of its row after the exchange, and of its own source tiles."""
    copies: list[tuple[int, int, int]] = []  # tensor, from device, to device
    joins: dict[tuple[int, Slice], list[int]] = {}  # what is put together on the port, and goes to these devices
    for number, tensor in enumerate(tensors):
        there = {tile.slice: tile.device for tile in reversed(tensor.source) if tile.device in host.devices}
        own = {tile.device: tile.slice for tile in tensor.source}
        for tile in tensor.target:
            if tile.device not in host.devices:
                continue
            if tile.slice in there:
                source = tile.device if own.get(tile.device) == tile.slice else there[tile.slice]
                copies.append((number, source, tile.device))
            else:
                joins.setdefault((number, tile.slice), []).append(tile.device)
    offsets = buffers.offsets.get(host.number, {})
    makers = [_joiner(host, key[0], key[1], units, tensors, dtypes, offsets) for key in joins]

    def unpack(shards: Shards, row: Any, made: list[Tiles]) -> None:
        for tensor, source, target in copies:
            made[tensor][target] = jax.device_put(shards[tensor][source], host.devices[target])
        for (tensor, _), targets, join in zip(joins, joins.values(), makers, strict=True):
            tile = join(shards, row)
            for target in targets:
                made[tensor][target] = jax.device_put(tile, host.devices[target])

    return unpack


def _holder(unit: Unit, host: Host) -> int:
    holders = [device for device in unit.holders if device in host.devices]
    return host.port.id if host.port.id in holders else min(holders)


def _words_cutter(
    device: int, units: Sequence[Unit], tensors: Sequence[Tensor], buffers: Buffers
) -> Callable[[Shards], jax.Array]:
    """The words of units out of the tiles of one device that holds them, one after the other."""
    needed = list(dict.fromkeys(unit.tensor for unit in units))
    tiles = {tensor: _tile(tensors[tensor], device) for tensor in needed}

    def cut(arrays: Mapping[int, jax.Array]) -> jax.Array:
        parts = [arrays[unit.tensor][_within(unit.slice, tiles[unit.tensor])] for unit in units]
        return jnp.concatenate([to_words(part, buffers.width) for part in parts])

    jitted = jax.jit(cut)
    return lambda shards: jitted({tensor: shards[tensor][device] for tensor in needed})


def _joiner(
    host: Host,
    number: int,
    tile: Slice,
    units: Sequence[Unit],
    tensors: Sequence[Tensor],
    dtypes: Sequence[Any],
    offsets: Mapping[int, int],
) -> Callable[[Shards, Any], jax.Array]:
    """One tile on the port: what devices of this host have of it, and the units that came."""
    dtype, tensor = dtypes[number], tensors[number]
    local: list[tuple[int, _Index, _Index]] = []  # device, where in its tile, where in this one
    for source in {source.slice: source for source in tensor.source if source.device in host.devices}.values():
        common = _common(source.slice, tile)
        if common is not None:
            local.append((source.device, _within(common, source.slice), _within(common, tile)))
    came: list[tuple[int, tuple[int, ...], _Index]] = []  # offset, shape, where in this tile
    for unit in units:
        if unit.tensor == number and unit.index in offsets and not any(d in host.devices for d in unit.holders):
            common = _common(unit.slice, tile)
            if common is not None:
                assert common == unit.slice  # units never straddle the border of a tile
                shape = tuple(stop - start for start, stop in unit.slice)
                came.append((offsets[unit.index], shape, _within(common, tile)))
    shape = tuple(stop - start for start, stop in tile)

    def join(pieces: Sequence[jax.Array], row: Any) -> jax.Array:
        placed = [(piece, at) for piece, (_, _, at) in zip(pieces, local, strict=True)]
        for offset, extent, at in came:
            size = prod(extent) * tensor.item_bytes // row.dtype.itemsize
            placed.append((from_words(row[0, offset : offset + size], extent, dtype), at))
        if len(placed) == 1 and placed[0][0].shape == shape:
            return placed[0][0]
        made = jnp.zeros(shape, dtype)
        for piece, at in placed:
            made = made.at[at].set(piece)
        return made

    joined = jax.jit(join, out_shardings=SingleDeviceSharding(host.port))
    pick = jax.jit(lambda array, at: array[tuple(slice(a, b) for a, b in at)], static_argnums=1)

    def run(shards: Shards, row: Any) -> jax.Array:
        pieces = [
            jax.device_put(pick(shards[number][device], tuple((s.start, s.stop) for s in at)), host.port)
            for device, at, _ in local
        ]
        return joined(pieces, row)

    return run


def _tile(tensor: Tensor, device: int) -> Slice:
    return next(tile.slice for tile in tensor.source if tile.device == device)


def _within(inner: Slice, outer: Slice) -> _Index:
    """A slice of the tensor, counted from the beginning of a tile of it."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(inner, outer, strict=True))


def _common(a: Slice, b: Slice) -> Slice | None:
    """What two slices have in common, None if nothing."""
    found = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return found if all(start < stop for start, stop in found) else None
