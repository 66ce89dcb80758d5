"""A program of messages between hosts as one jitted function over a device of each: chains of permutes on flat buffers.

Owns the layout of the buffers and the order of the messages. Knows nothing of tensors, nor how programs are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.errors import RhinoError
from rhino.reshard.data import MessageProgram, MessageStep, Phase
from rhino.runtime.words import word_bytes

AXIS = "host"
_MOST_WORDS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Buffers:
    """Where units are in each host's buffer, in words of `width` bytes.

    Attributes:
      length: of every host's buffer.
      bundles: per host and bundle it sends or gets, where the bundle begins. Those it has from the start come first.
      offsets: the same of the bundles' units, which lie one after the other.
      given: per host, the units that must be there before the first message.
    """

    width: int
    length: int
    bundles: Mapping[int, Mapping[int, int]]
    offsets: Mapping[int, Mapping[int, int]]
    given: Mapping[int, tuple[int, ...]]


def lay_out(program: MessageProgram, items: Iterable[int]) -> Buffers:
    """Buffers with room for all bundles that pass a host, and for the padding of its messages.

    Args:
      items: bytes of an element of each tensor, which words must divide.
    """
    hops = [(phase, step, hop) for phase in program.phases for step in phase.steps for hop in step.hops]
    sizes = program.bundle_bytes
    width = word_bytes([*items, *(n for _, _, hop in hops for n in (hop.start, hop.length, hop.stride))])
    ends: dict[int, dict[int, int]] = {host: {} for host in program.hosts}
    got: dict[int, set[int]] = {host: set() for host in program.hosts}
    for phase, _, hop in hops:
        end = max(hop.start + hop.stride * (phase.chunks - 1) + hop.length, sizes[hop.bundle])
        for host in (hop.source, hop.target):
            ends[host][hop.bundle] = max(end, ends[host].get(hop.bundle, 0))
        got[hop.target].add(hop.bundle)
    bundles: dict[int, dict[int, int]] = {}
    offsets: dict[int, dict[int, int]] = {}
    given: dict[int, tuple[int, ...]] = {}
    length = 0
    for host in program.hosts:
        first = [bundle for bundle in sorted(ends[host]) if bundle not in got[host]]
        given[host] = tuple(unit for bundle in first for unit in program.bundles[bundle])
        at, begins, mine = 0, bundles.setdefault(host, {}), offsets.setdefault(host, {})
        for bundle in (*first, *sorted(got[host])):
            begins[bundle] = at // width
            start = at
            for unit in program.bundles[bundle]:
                mine[unit] = start // width
                start += program.units[unit].nbytes
            at += ends[host][bundle]
        length = max(length, at // width)
    for phase, step, hop in hops:
        last = (hop.start + hop.stride * (phase.chunks - 1) + step.length) // width
        length = max(length, *(bundles[host][hop.bundle] + last for host in (hop.source, hop.target)))
    if length > _MOST_WORDS:
        raise RhinoError(
            f"a transfer needs a buffer of {length * width} bytes on one device, more than one message can address",
            "cut the step into more micro-batches",
        )
    return Buffers(width, length, bundles, offsets, given)


def messages(program: MessageProgram, buffers: Buffers, ports: Mapping[int, Any]) -> Callable[[jax.Array], jax.Array]:
    """A jitted function of the hosts' buffers, `[hosts, length]` with a row on each host's port, which it consumes.

    Args:
      ports: a device of each host, in the order of the rows.
    """
    mesh = Mesh(np.array(list(ports.values())), (AXIS,))
    number = {host: row for row, host in enumerate(ports)}
    bodies = [_phase(number, buffers, phase) for phase in program.phases]

    def run(buffer: jax.Array) -> jax.Array:
        row, here = buffer[0], lax.axis_index(AXIS)
        for body in bodies:
            row = body(row, here)
        return row[None]

    spec = PartitionSpec(AXIS)
    mapped = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped, donate_argnums=0)


def rows(ports: Mapping[int, Any]) -> NamedSharding:
    """The sharding of the buffers: a row for each port."""
    return NamedSharding(Mesh(np.array(list(ports.values())), (AXIS,)), PartitionSpec(AXIS))


def _phase(number: Mapping[int, int], buffers: Buffers, phase: Phase) -> Callable[[jax.Array, jax.Array], jax.Array]:
    steps = [_step(number, buffers, phase, step) for step in phase.steps]

    def period(p: Any, row: jax.Array, here: jax.Array) -> jax.Array:
        for step in steps:
            row = step(p, row, here)
        return row

    def body(row: jax.Array, here: jax.Array) -> jax.Array:
        if phase.periods == 1:
            return period(0, row, here)
        return lax.fori_loop(0, phase.periods, lambda p, row: period(p, row, here), row)

    return body


def _step(
    number: Mapping[int, int], buffers: Buffers, phase: Phase, step: MessageStep
) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """One permute. Each host looks up in tables what it sends and gets; where that is nothing, it changes nothing."""
    count, width = len(number), buffers.width
    length = step.length // width
    sent, got = np.zeros((count, 3), np.int32), np.zeros((count, 3), np.int32)
    size = np.zeros(count, np.int32)
    for hop in step.hops:
        for table, host in ((sent, hop.source), (got, hop.target)):
            at = buffers.bundles[host][hop.bundle] + hop.start // width
            table[number[host]] = (at, hop.stride // width, hop.lag)
        size[number[hop.target]] = hop.length // width
    pairs = [(number[hop.source], number[hop.target]) for hop in step.hops]

    def run(p: Any, row: jax.Array, here: jax.Array) -> jax.Array:
        from_, to = jnp.asarray(sent)[here], jnp.asarray(got)[here]
        chunk = jnp.clip(p - from_[2], 0, phase.chunks - 1)
        out = lax.dynamic_slice(row, (from_[0] + from_[1] * chunk,), (length,))
        arrived = lax.ppermute(out, AXIS, pairs)
        chunk = p - to[2]
        valid = jnp.where((chunk >= 0) & (chunk < phase.chunks), jnp.asarray(size)[here], 0)
        at = to[0] + to[1] * jnp.clip(chunk, 0, phase.chunks - 1)
        old = lax.dynamic_slice(row, (at,), (length,))
        new = jnp.where(jnp.arange(length, dtype=jnp.int32) < valid, arrived, old)
        return lax.dynamic_update_slice(row, new, (at,))

    return run
