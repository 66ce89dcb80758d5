"""The way of a set of arrays from one group of devices to another across hosts, as one program of messages.

Owns packing on each host, the exchange, and unpacking; between devices of one host arrays are copied directly. The
plan is `rhino.reshard`'s. Knows nothing of pipelines and schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rhino.compile._jax import key_implementation
from rhino.reshard.data import MessageProgram, MovedTensor, Network, Tile
from rhino.reshard.plan import ReshardPlan, plan_reshard
from rhino.reshard.sent import ports_of
from rhino.runtime.hops import lay_out, messages, rows
from rhino.runtime.packing import Host, Senders, Shards, Tiles, Unpacker, packer


@dataclass(frozen=True, slots=True)
class Started:
    """An exchange whose source tiles have been read.

    Attributes:
      packed: the hosts' rows by port.
      pieces: what stays on its host.
      made: whole tiles.
      over: what is there when the messages are over, also on hosts that only send; empty until `finish`.
    """

    packed: Mapping[int, jax.Array]
    pieces: Sequence[Any]
    made: list[Tiles]
    over: list[jax.Array] = field(default_factory=list)


class TileExchange:
    """Moves tensors from tiles on some devices to tiles on others, bit for bit; tiles may be uneven.

    Every process that has one of the devices calls it, in the same order as other exchanges of its `way`. A call
    dispatches and does not wait.

    Args:
      tensors: what goes where.
      dtypes: of each tensor.
      devices: all devices of the tensors' tiles, by number.
      program: the messages, for these tensors.
      host_of: the host of each device.
      senders: per unit the devices that read it for their host to send; hosts without one choose.
    """

    def __init__(
        self,
        tensors: Sequence[MovedTensor],
        dtypes: Sequence[Any],
        devices: Mapping[int, Any],
        program: MessageProgram,
        host_of: Mapping[int, int],
        senders: Senders = (),
    ) -> None:
        self._tensors = len(tensors)
        hosts: dict[int, dict[int, Any]] = {}
        for number in sorted(devices):
            hosts.setdefault(host_of[number], {})[number] = devices[number]
        ports = {host: devices[port] for host, port in ports_of(tensors, host_of).items()}
        everyone = [Host(host, mine, ports[host]) for host, mine in hosts.items()]
        here = [host for host in everyone if host.port.process_index == jax.process_index()]
        self._ports = {host: port for host, port in ports.items() if host in program.hosts}
        buffers = lay_out(program, [tensor.item_bytes for tensor in tensors])
        self._packs = {
            host.port.id: packer(host, program.units, tensors, buffers, senders)
            for host in here
            if host.number in self._ports
        }
        self._unpacks = [(host.port.id, Unpacker(host, program.units, tensors, dtypes, buffers)) for host in here]
        self._shape = (len(self._ports), buffers.length)
        self._kind = jnp.dtype(f"uint{8 * buffers.width}")
        self._rows = rows(self._ports) if self._ports else None
        self._messages = messages(program, buffers, self._ports) if self._ports else None

    @property
    def way(self) -> tuple[int, ...]:
        """The ports, by number. Two exchanges of one way share connections: at most one may be under way at a time."""
        return tuple(port.id for port in self._ports.values())

    def __call__(self, shards: Shards) -> list[list[jax.Array]]:
        """The target tiles of each tensor on this process's devices, in the order of the devices' numbers.

        Args:
          shards: per tensor the source tiles that this process has, by number of their device.
        """
        return self.finish(self.start(shards))

    def start(self, shards: Shards) -> Started:
        """Dispatches all that reads the source tiles. The caller may give them away after it."""
        made: list[Tiles] = [{} for _ in range(self._tensors)]
        packed = {port: pack(shards) for port, pack in self._packs.items()}
        return Started(packed, [unpack.start(shards, made) for _, unpack in self._unpacks], made)

    def finish(self, started: Started) -> list[list[jax.Array]]:
        """Dispatches the rest. Of exchanges of one `way`, in the same order everywhere."""
        arrived = self._exchanged(started.packed)
        started.over.extend(arrived.values())
        for (port, unpack), pieces in zip(self._unpacks, started.pieces, strict=True):
            unpack.finish(pieces, arrived.get(port), started.made)
        return [[tiles[device] for device in sorted(tiles)] for tiles in started.made]

    def warm_up(self) -> None:
        """Compiles the messages and runs them once on zeros, which makes the connections; waits for them."""
        empty = np.zeros((1, self._shape[1]), self._kind)
        ports = {port.id: port for port in self._ports.values()}
        zeros = {port: jax.device_put(empty, ports[port]) for port in self._packs}
        jax.block_until_ready(list(self._exchanged(zeros).values()))

    def _exchanged(self, packed: Mapping[int, jax.Array]) -> dict[int, jax.Array]:
        """The hosts' rows by port, before and after."""
        if self._messages is None or not packed:
            return {}
        row_of = list(packed.values())
        whole = jax.make_array_from_single_device_arrays(self._shape, self._rows, row_of, dtype=self._kind)
        done = self._messages(whole)
        return {shard.device.id: shard.data for shard in done.addressable_shards}


class ArrayExchange:
    """Moves jax arrays from their shardings on one group of devices to shardings on another, as `TileExchange` does.

    Args:
      sources, targets: the sharding of each array before and after.
      avals: shape and dtype of each (`jax.ShapeDtypeStruct`).
      program, host_of, senders: as for `TileExchange`; `plan_arrays` plans them.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        targets: Sequence[Any],
        avals: Sequence[Any],
        program: MessageProgram,
        host_of: Mapping[int, int],
        senders: Senders = (),
    ) -> None:
        self._avals = tuple(avals)
        self._targets = tuple(targets)
        self._bits = [_bits(aval) for aval in avals]
        devices = {d.id: d for sharding in (*sources, *targets) for d in sharding.device_set}
        dtypes = [aval.dtype for aval in self._bits]
        tensors = tensors_of(sources, targets, avals)
        self._exchange = TileExchange(tensors, dtypes, devices, program, host_of, senders)

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """The arrays on the target devices; where this process has none of them, handles without data."""
        return self.finish(self.start(arrays))

    def start(self, arrays: Sequence[Any]) -> Started:
        """As `TileExchange.start`. What this process has no part of may be None."""
        plain = [jax.random.key_data(a) if a is not None and _is_key(a.dtype) else a for a in arrays]
        return self._exchange.start(
            [{} if a is None else {shard.device.id: shard.data for shard in a.addressable_shards} for a in plain]
        )

    def finish(self, started: Started) -> list[Any]:
        """As `TileExchange.finish`."""
        made = [
            jax.make_array_from_single_device_arrays(aval.shape, sharding, tiles, dtype=aval.dtype)
            for aval, sharding, tiles in zip(self._bits, self._targets, self._exchange.finish(started), strict=True)
        ]
        return [_keys(bits, a.dtype) if _is_key(a.dtype) else bits for bits, a in zip(made, self._avals, strict=True)]

    @property
    def way(self) -> tuple[int, ...]:
        """As `TileExchange.way`."""
        return self._exchange.way

    def warm_up(self) -> None:
        """As `TileExchange.warm_up`."""
        self._exchange.warm_up()


def plan_arrays(
    sources: Sequence[Any],
    targets: Sequence[Any],
    avals: Sequence[Any],
    network: Network,
    strategy: str = "broadcast",
    scheduler: str = "optimal",
    chunks: int | None = None,
) -> ReshardPlan:
    """The plan of an `ArrayExchange` between devices (by number) on hosts: see `rhino.reshard.plan_reshard`."""
    return plan_reshard(tensors_of(sources, targets, avals), network, strategy, scheduler, chunks=chunks)


def tensors_of(sources: Sequence[Any], targets: Sequence[Any], avals: Sequence[Any]) -> list[MovedTensor]:
    """The ways of arrays as `rhino.reshard` describes them."""
    bits = [_bits(aval) for aval in avals]
    return [
        MovedTensor(tuple(a.shape), a.dtype.itemsize, tiles_of(source, a.shape), tiles_of(target, a.shape))
        for a, source, target in zip(bits, sources, targets, strict=True)
    ]


def tiles_of(sharding: Any, shape: tuple[int, ...]) -> tuple[Tile, ...]:
    """What each device has of an array, in the order of the devices."""
    found = []
    for device, index in sharding.devices_indices_map(tuple(shape)).items():
        bounds = tuple(at.indices(size)[:2] for at, size in zip(index, shape, strict=True))
        found.append(Tile(device.id, bounds))
    return tuple(found)


def _is_key(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def _bits(aval: Any) -> Any:
    return jax.eval_shape(jax.random.key_data, aval) if _is_key(aval.dtype) else aval


def _keys(bits: jax.Array, dtype: Any) -> Any:
    return jax.random.wrap_key_data(bits, impl=key_implementation(dtype))
