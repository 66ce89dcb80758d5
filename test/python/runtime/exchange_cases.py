"""Random reshardings between two groups of devices on several hosts, and whether they come out bit for bit.

Used by the tests of one process, with hosts that are made up, and by the worker of several processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.reshard.checker import check_program
from rhino.reshard.data import SCHEDULERS, STRATEGIES, MovedTensor, Network
from rhino.reshard.plan import plan_reshard
from rhino.reshard.tiles import spec_tiles
from rhino.runtime.edges import ArrayExchange, TileExchange, plan_arrays

DTYPES = (
    "bool", "int4", "uint4", "int8", "uint8", "int16", "int32", "uint32", "bfloat16", "float16", "float32",
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn", "complex64",
)  # fmt: skip
MESHES = ((2, 2), (4, 1), (1, 4), (4,), (3,), (2,), (1,))


@dataclass(frozen=True)
class Case:
    """Two tensors of different dtypes that go together, on meshes of devices of their own."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    meshes: tuple[tuple[int, ...], tuple[int, ...]]
    specs: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    strategy: str
    scheduler: str
    chunks: int | None


def cases(count: int, seed: int) -> Iterator[Case]:
    """Sizes that mostly divide nothing."""
    dice = random.Random(seed)
    for number in range(count):
        meshes = (dice.choice(MESHES), dice.choice(MESHES))
        shapes = tuple(tuple(dice.randint(1, 9) for _ in range(dice.randint(1, 3))) for _ in range(2))
        specs = tuple(tuple(_spec(dice, len(shape), mesh) for mesh in meshes) for shape in shapes)
        yield Case(
            shapes, (DTYPES[number % len(DTYPES)], dice.choice(DTYPES)), meshes, specs,  # type: ignore[arg-type]
            dice.choice(STRATEGIES), dice.choice(SCHEDULERS), dice.choice([None, 3]),
        )  # fmt: skip


def _spec(dice: random.Random, rank: int, mesh: tuple[int, ...]) -> tuple[str, ...]:
    spec = ["R"] * rank
    axes = list(range(len(mesh)))
    dice.shuffle(axes)
    for axis in axes:
        dim = dice.randrange(-1, rank)
        if dim >= 0:
            spec[dim] = f"{'S' if spec[dim] == 'R' else spec[dim]}{axis}"
    return tuple(spec)


def values(shape: Sequence[int], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Random bits, NaNs and denormals included."""
    dice = np.random.default_rng(seed)
    kind = jnp.dtype(dtype)
    size = int(np.prod(shape))
    if dtype == "bool":
        return dice.integers(0, 2, shape).astype(bool)
    if dtype in ("int4", "uint4", "float4_e2m1fn"):
        return (
            dice.integers(0, 16, size, dtype=np.uint8)
            .astype("uint8")
            .view(np.uint8)
            .astype(jnp.uint4)
            .astype(jnp.uint8)
            .reshape(shape)
            .astype(kind)
        )
    return dice.integers(0, 256, size * kind.itemsize, dtype=np.uint8).view(kind).reshape(shape)


def network(host_of: Mapping[int, int]) -> Network:
    """1 GB/s and 10 microseconds."""
    hosts = sorted(set(host_of.values()))
    return Network(dict(host_of), dict.fromkeys(hosts, Fraction(10**9)), Fraction(1, 10**5))


def check(case: Case, devices: Sequence[Any], host_of: Mapping[int, int], seed: int) -> None:
    """Moves the case's tensors from the first devices to the last ones; every tile must have the very bits."""
    numbers = [device.id for device in devices]
    first, last = (int(np.prod(mesh)) for mesh in case.meshes)
    here = jax.process_index()
    source, target = numbers[:first], numbers[len(numbers) - last :]
    tensors, full = [], []
    for k, (shape, dtype, specs) in enumerate(zip(case.shapes, case.dtypes, case.specs, strict=True)):
        ends = []
        for mesh, spec, chosen in zip(case.meshes, specs, (source, target), strict=True):
            tiles = spec_tiles(shape, mesh, spec)
            ends.append(tuple(type(tile)(chosen[tile.device], tile.slice) for tile in tiles))
        tensors.append(MovedTensor(shape, jnp.dtype(dtype).itemsize, ends[0], ends[1]))
        full.append(values(shape, dtype, 100 * seed + k))
    net = network(host_of)
    plan = plan_reshard(tensors, net, case.strategy, case.scheduler, chunks=case.chunks)
    check_program(plan.program, net)
    by_number = {device.id: device for device in devices}
    used = {tile.device: by_number[tile.device] for t in tensors for tile in (*t.source, *t.target)}
    exchange = TileExchange(tensors, [jnp.dtype(d) for d in case.dtypes], used, plan.program, host_of)
    shards = [
        {
            tile.device: jax.device_put(array[_index(tile.slice)], by_number[tile.device])
            for tile in tensor.source
            if by_number[tile.device].process_index == here
        }
        for tensor, array in zip(tensors, full, strict=True)
    ]
    for tensor, array, made in zip(tensors, full, exchange(shards), strict=True):
        wanted = [t for t in sorted(tensor.target, key=lambda t: t.device) if by_number[t.device].process_index == here]
        wanted = [tile for tile in wanted if all(a < b for a, b in tile.slice)]
        found = [tile for tile in made if tile.size]
        assert len(found) == len(wanted), case
        for tile, piece in zip(wanted, found, strict=True):
            assert piece.devices() == {by_number[tile.device]}, case
            assert piece.dtype == array.dtype, case
            assert np.asarray(piece).tobytes() == array[_index(tile.slice)].tobytes(), (case, tile)


def check_keys(devices: Sequence[Any], host_of: Mapping[int, int]) -> None:
    """PRNG keys of a jax array, split over one mesh and replicated on another."""
    half = len(devices) // 2
    split = NamedSharding(Mesh(np.array(devices[:half]), ("x",)), PartitionSpec("x"))
    whole = NamedSharding(Mesh(np.array(devices[half:]), ("x",)), PartitionSpec())
    keys = jax.random.split(jax.random.key(3, impl="rbg"), (half, 3))
    bits = np.asarray(jax.random.key_data(keys))
    ends = ([split], [whole], [jax.ShapeDtypeStruct(keys.shape, keys.dtype)])
    edge = ArrayExchange(*ends, plan_arrays(*ends, network(host_of)).program, host_of)
    pieces = [
        jax.device_put(bits[i : i + 1], device)
        for i, device in enumerate(devices[:half])
        if device.process_index == jax.process_index()
    ]
    given = jax.make_array_from_single_device_arrays(bits.shape, split, pieces, dtype=bits.dtype)
    (made,) = edge([jax.random.wrap_key_data(given, impl="rbg")])
    assert made.dtype == keys.dtype
    assert made.sharding.is_equivalent_to(whole, made.ndim)
    for shard in jax.random.key_data(made).addressable_shards:
        assert np.array_equal(np.asarray(shard.data), bits)


def _index(at: Any) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in at)
