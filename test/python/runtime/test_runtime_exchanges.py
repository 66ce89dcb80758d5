"""Exchanges between hosts, made up in one process and real in several: every bit arrives, of every dtype."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import exchange_cases
import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest

from rhino.reshard.data import Hop, MessageProgram, MessageStep, MovedTensor, Network, Phase, Tile, Unit
from rhino.reshard.plan import plan_reshard
from rhino.runtime.edges import TileExchange
from rhino.runtime.words import from_bits, from_words, to_bits, to_words


def again(array: np.ndarray[Any, Any], width: int) -> Any:
    def both(x: jax.Array) -> jax.Array:
        bits = to_bits(x)
        return from_bits(from_words(to_words(bits, width), bits.shape, bits.dtype), x.dtype)

    return np.asarray(jax.jit(both)(array))


@pytest.mark.parametrize("dtype", exchange_cases.DTYPES)
def test_words_keep_every_bit(dtype: str) -> None:
    array = exchange_cases.values((3, 5), dtype, 1)
    for width in (1, 2, 4):
        if jnp.dtype(dtype).itemsize % width == 0:
            found = again(array, width)
            assert found.dtype == array.dtype
            assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["int64", "float64", "complex128"])
def test_words_of_wide_types(dtype: str) -> None:
    with jax.enable_x64(True):
        array = exchange_cases.values((3, 5), dtype, 1)
        for width in (1, 2, 4):
            assert again(array, width).tobytes() == array.tobytes()


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2, 3))])
def test_random_reshardings_between_made_up_hosts(part: int) -> None:
    devices = jax.devices()
    host_of = {device.id: number // 2 for number, device in enumerate(devices)}
    for number, case in enumerate(exchange_cases.cases(25 if part else 10, part)):
        exchange_cases.check(case, devices, host_of, number)


def test_random_reshardings_on_one_host_are_copies() -> None:
    devices = jax.devices()
    for number, case in enumerate(exchange_cases.cases(8, 7)):
        exchange_cases.check(case, devices, dict.fromkeys((device.id for device in devices), 0), number)


def test_keys_of_random_numbers() -> None:
    devices = jax.devices()
    exchange_cases.check_keys(devices, {device.id: number // 2 for number, device in enumerate(devices)})


@pytest.mark.parametrize("count", [pytest.param(12, marks=pytest.mark.long), pytest.param(100, marks=pytest.mark.long)])
def test_random_reshardings_between_processes(count: int) -> None:
    worker = Path(__file__).parent / "exchange_worker.py"
    outputs = processes.run(worker, 4, [str(count), "11"], devices=2, timeout=1200)
    assert all(f"{count} cases are right" in output for output in outputs)


def test_a_message_longer_than_its_neighbours_changes_no_other_unit() -> None:
    """Two messages of one step, three bytes and one: what lies behind the one byte came before, and stays."""
    devices = jax.devices()
    way = [(0, 2, 3), (1, 3, 1), (0, 3, 1)]  # from, to, bytes
    tensors = [MovedTensor((n,), 1, (Tile(a, ((0, n),)),), (Tile(b, ((0, n),)),)) for a, b, n in way]
    units = tuple(Unit(i, i, ((0, n),), n, (a,), (b,)) for i, (a, b, n) in enumerate(way))
    steps = (MessageStep((Hop(0, 3, 2, 0, 1),)), MessageStep((Hop(0, 2, 0, 0, 3), Hop(1, 3, 1, 0, 1))))
    program = MessageProgram((0, 1, 2, 3), units, ((0,), (1,), (2,)), (Phase(1, 1, steps),))
    host_of = {i: i for i in range(4)}
    exchange = TileExchange(tensors, [jnp.uint8] * 3, {i: devices[i] for i in range(4)}, program, host_of)
    arrays = [np.array(values, np.uint8) for values in ([1, 2, 3], [4], [7])]
    shards = [{a: jax.device_put(array, devices[a])} for array, (a, _, _) in zip(arrays, way, strict=True)]
    for array, made in zip(arrays, exchange(shards), strict=True):
        assert np.array_equal(np.asarray(made[0]), array)


PINWHEEL = (((0, 1), (0, 2)), ((0, 2), (2, 3)), ((2, 3), (1, 3)), ((1, 3), (0, 1)), ((1, 2), (1, 2)))
OVERLAPPING = (((0, 2), (0, 3)), ((1, 3), (0, 3)))


@pytest.mark.parametrize("slices", [PINWHEEL, OVERLAPPING], ids=["interlocking", "overlapping"])
@pytest.mark.parametrize("devices_per_host", [1, 3, 8])
def test_tiles_that_no_plane_parts(slices: tuple[Any, ...], devices_per_host: int) -> None:
    devices = jax.devices()
    whole = np.arange(9, dtype=np.int16).reshape(3, 3)
    tensor = MovedTensor((3, 3), 2, tuple(Tile(d, at) for d, at in enumerate(slices)), (Tile(5, ((0, 3), (0, 3))),))
    host_of = {d: d // devices_per_host for d in range(6)}
    plan = plan_reshard([tensor], Network(host_of, dict.fromkeys(set(host_of.values()), Fraction(1))))
    used = {d: devices[d] for d in (*range(len(slices)), 5)}
    exchange = TileExchange([tensor], [jnp.int16], used, plan.program, host_of)
    shards = {d: jax.device_put(whole[tuple(slice(*at) for at in box)], devices[d]) for d, box in enumerate(slices)}
    [[made]] = exchange([shards])
    assert np.array_equal(np.asarray(made), whole)
