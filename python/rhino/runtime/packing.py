"""What a host does before and after an exchange: its devices' tiles into its buffer, and the buffer into tiles.

Owns the cutting and joining on one host. Knows nothing of messages, nor of other hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from rhino.reshard.data import MovedTensor, Slice, Unit
from rhino.reshard.sent import sender_on
from rhino.runtime.hops import Buffers
from rhino.runtime.words import bits_of, from_bits, from_words, to_bits, to_words

# Per tensor, by number of the device, what the devices of this process have of it.
Shards = Sequence[Mapping[int, jax.Array]]
# Per unit, devices that read it for their host to send.
Senders = Sequence[Sequence[int]]
# Of one tensor, by number of the device, its tiles on devices of this process.
Tiles = dict[int, jax.Array]


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


def packer(
    host: Host, units: Sequence[Unit], tensors: Sequence[MovedTensor], buffers: Buffers, senders: Senders = ()
) -> Callable[[Shards], Any]:
    """What makes a host's row of the exchange, `[1, length]` on its port: the units it has, and zeros."""
    begins = buffers.offsets[host.number]
    given = sorted(buffers.given.get(host.number, ()), key=lambda unit: begins[unit])
    by_device: dict[int, list[int]] = {}
    for unit in given:
        told = [device for device in (senders[unit] if senders else ()) if device in host.devices]
        by_device.setdefault(told[0] if told else _holder(units[unit], host), []).append(unit)
    own = _Cutter(host.port.id, [units[unit] for unit in by_device.get(host.port.id, ())], tensors, buffers.width)
    sent = {device: chosen for device, chosen in by_device.items() if device != host.port.id}
    cutters = [
        _Cutter(device, [units[unit] for unit in chosen], tensors, buffers.width) for device, chosen in sent.items()
    ]
    cuts = [jax.jit(cutter.cut) for cutter in cutters]
    kind = f"uint{8 * buffers.width}"

    def fill(tiles: Mapping[int, jax.Array], parts: Sequence[jax.Array]) -> jax.Array:
        words = dict(zip(by_device.get(host.port.id, ()), own.words(tiles), strict=True))
        for chosen, part in zip(sent.values(), parts, strict=True):
            ends = list(accumulate(units[unit].nbytes // buffers.width for unit in chosen))
            words |= zip(chosen, jnp.split(part, ends[:-1]), strict=True)
        # One concatenation: XLA takes seconds for hundreds of updates in a row.
        pieces, end = [], 0
        for unit in given:
            pieces += [jnp.zeros(begins[unit] - end, kind), words[unit]]
            end = begins[unit] + words[unit].size
        return jnp.concatenate([*pieces, jnp.zeros(buffers.length - end, kind)])[None]

    filled = jax.jit(fill, out_shardings=SingleDeviceSharding(host.port))

    def pack(shards: Shards) -> Any:
        parts = [cut(cutter.tiles(shards)) for cut, cutter in zip(cuts, cutters, strict=True)]
        return filled(own.tiles(shards), [jax.device_put(part, host.port) for part in parts])

    return pack


class Unpacker:
    """Makes the target tiles on a host's devices: of its row after the exchange, and of its own source tiles.

    In two halves: what reads the source tiles can be dispatched before the caller gives them away.
    """

    def __init__(
        self, host: Host, units: Sequence[Unit], tensors: Sequence[MovedTensor], dtypes: Sequence[Any], buffers: Buffers
    ) -> None:
        self._devices = host.devices
        self._copies: list[tuple[int, int, int]] = []  # tensor, from device, to device
        # What is put together on the port, and goes to these devices.
        self._joins: dict[tuple[int, Slice], list[int]] = {}
        for number, tensor in enumerate(tensors):
            there = {tile.slice: tile.device for tile in reversed(tensor.source) if tile.device in host.devices}
            own = {tile.device: tile.slice for tile in tensor.source}
            for tile in tensor.target:
                if tile.device not in host.devices:
                    continue
                if tile.slice in there:
                    source = tile.device if own.get(tile.device) == tile.slice else there[tile.slice]
                    self._copies.append((number, source, tile.device))
                else:
                    self._joins.setdefault((number, tile.slice), []).append(tile.device)
        offsets = buffers.offsets.get(host.number, {})
        self._joiners = [
            _Joiner(host, tensor, tile, units, tensors[tensor], dtypes[tensor], offsets) for tensor, tile in self._joins
        ]

    def start(self, shards: Shards, made: list[Tiles]) -> list[list[jax.Array]]:
        """Adds the tiles that are whole on this host to `made`; returns what `finish` needs of the others."""
        for tensor, source, target in self._copies:
            made[tensor][target] = jax.device_put(shards[tensor][source], self._devices[target])
        return [joiner.pieces(shards[tensor]) for (tensor, _), joiner in zip(self._joins, self._joiners, strict=True)]

    def finish(self, started: Sequence[Sequence[jax.Array]], row: Any, made: list[Tiles]) -> None:
        """Adds the tiles that need what came; `row` is the host's, None if nothing did."""
        for (tensor, _), targets, joiner, pieces in zip(
            self._joins, self._joins.values(), self._joiners, started, strict=True
        ):
            tile = joiner.join(pieces, row)
            for target in targets:
                made[tensor][target] = jax.device_put(tile, self._devices[target])


def _holder(unit: Unit, host: Host) -> int:
    return sender_on([device for device in unit.holders if device in host.devices], host.port.id)


class _Cutter:
    """Units out of the tiles of one device that holds them."""

    def __init__(self, device: int, units: Sequence[Unit], tensors: Sequence[MovedTensor], width: int) -> None:
        self._device, self._units, self._width = device, units, width
        self._slices = {unit.tensor: _tile(tensors[unit.tensor], device) for unit in units}

    def tiles(self, shards: Shards) -> Tiles:
        """What the device has of the tensors needed."""
        return {tensor: shards[tensor][self._device] for tensor in self._slices}

    def words(self, tiles: Mapping[int, jax.Array]) -> list[jax.Array]:
        """The words of each unit."""
        bits = {tensor: to_bits(array) for tensor, array in tiles.items()}
        parts = [bits[unit.tensor][_index(_within(unit.slice, self._slices[unit.tensor]))] for unit in self._units]
        return [to_words(part, self._width) for part in parts]

    def cut(self, tiles: Mapping[int, jax.Array]) -> jax.Array:
        """The words of all units, one after the other."""
        return jnp.concatenate(self.words(tiles))


class _Joiner:
    """One tile, put together on the port: what devices of this host have of it, and the units that came."""

    def __init__(
        self,
        host: Host,
        tensor: int,
        tile: Slice,
        units: Sequence[Unit],
        described: MovedTensor,
        dtype: Any,
        offsets: Mapping[int, int],
    ) -> None:
        self._port = host.port
        # (device, where in its tile, where in this one)
        self._local: list[tuple[int, Slice, Slice]] = []
        for source in {source.slice: source for source in described.source if source.device in host.devices}.values():
            common = _common(source.slice, tile)
            if common is not None:
                self._local.append((source.device, _within(common, source.slice), _within(common, tile)))
        # (offset and length in the row, shape of the bits, where in this tile)
        came: list[tuple[int, int, tuple[int, ...], Slice]] = []
        for unit in units:
            if unit.tensor != tensor or unit.index not in offsets or any(d in host.devices for d in unit.holders):
                continue
            common = _common(unit.slice, tile)
            if common is not None:
                assert common == unit.slice  # units never straddle the border of a tile
                extent = bits_of(tuple(stop - start for start, stop in unit.slice), dtype).shape
                came.append((offsets[unit.index], unit.nbytes, extent, _within(common, tile)))
        whole = bits_of(tuple(stop - start for start, stop in tile), dtype)
        places = [at for _, _, at in self._local]

        def join(pieces: Sequence[jax.Array], row: Any) -> jax.Array:
            placed = [(to_bits(piece), at) for piece, at in zip(pieces, places, strict=True)]
            for offset, nbytes, extent, at in came:
                words = row[0, offset : offset + nbytes // row.dtype.itemsize]
                placed.append((from_words(words, extent, whole.dtype), at))
            return from_bits(_together(placed, whole), dtype)

        self.join = jax.jit(join, out_shardings=SingleDeviceSharding(host.port))

    def pieces(self, tiles: Mapping[int, jax.Array]) -> list[jax.Array]:
        """What is local, on the port."""
        return [jax.device_put(_pick(tiles[device], at), self._port) for device, at, _ in self._local]


def _together(placed: Sequence[tuple[jax.Array, Slice]], whole: jax.ShapeDtypeStruct) -> jax.Array:
    """The pieces, each at its place of a box that they cover."""
    joined = _stacked(placed)
    if joined is not None:
        return joined
    made = jnp.zeros(whole.shape, whole.dtype)
    for piece, at in placed:
        made = made.at[_index(at)].set(piece)
    return made


def _stacked(placed: Sequence[tuple[jax.Array, Slice]]) -> jax.Array | None:
    """The pieces by concatenations alone, which need no memory but the result's; None where they overlap or interlock.

    Those of a sharding are parted by a plane that crosses none of them, and so are the pieces on either side.
    """
    if len(placed) == 1:
        return placed[0][0]
    for dim in range(len(placed[0][1]) if placed else 0):
        layers: list[list[tuple[jax.Array, Slice]]] = []
        end = 0
        for piece in sorted(placed, key=lambda piece: piece[1][dim]):
            start, stop = piece[1][dim]
            if not layers or start >= end:
                layers.append([])
            layers[-1].append(piece)
            end = max(end, stop)
        if len(layers) > 1:
            parts = [_stacked(layer) for layer in layers]
            known = [part for part in parts if part is not None]
            return jnp.concatenate(known, axis=dim) if len(known) == len(parts) else None
    return None


@partial(jax.jit, static_argnums=1)
def _pick(array: jax.Array, at: Slice) -> jax.Array:
    return from_bits(to_bits(array)[_index(at)], array.dtype)


def _tile(tensor: MovedTensor, device: int) -> Slice:
    return next(tile.slice for tile in tensor.source if tile.device == device)


def _within(inner: Slice, outer: Slice) -> Slice:
    """A slice of the tensor, counted from the beginning of a tile of it."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(inner, outer, strict=True))


def _index(at: Slice) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in at)


def _common(a: Slice, b: Slice) -> Slice | None:
    """What two slices have in common, None if nothing."""
    found = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return found if all(start < stop for start, stop in found) else None
