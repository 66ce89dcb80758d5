"""One of several processes that save and restore a state of which each has a part only. Prints what it wrote, as JSON.

Started by `test_checkpoint_processes`: address, number of processes, own number, folder.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import rhino
from rhino.api.strided import StoredLayout, StridedArray
from rhino.checkpoint import StateRestore, StateSave, arrays, restore, save
from rhino.checkpoint.leaves import arrays_of
from rhino.compile._jax import weakly_typed
from rhino.runtime import StagedArray, staged


def values() -> dict[str, Any]:
    """The state as a program of one device has it."""
    numbers = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)
    return {
        "everywhere": numbers,
        "copies": numbers[:4] + 1,
        "more copies": numbers[:2] + 2,
        "stage": numbers[:4].astype(jnp.bfloat16),
        "process": np.arange(16, dtype=np.int32),
        "staged": numbers * 3,
        "strided": numbers * 5,
        "key": jax.random.key_data(jax.random.split(jax.random.key(3), 4)),
        "weak": np.float32(0.5),
        "own": np.float32(7),
        "numpy": numbers[0],
        "number": 5,
    }


def put(value: Any, sharding: Any) -> jax.Array:
    """An array of which this process has what is on its devices: nothing, perhaps."""
    here = sharding.addressable_devices_indices_map(value.shape).items()
    parts = [jax.device_put(value[index], device) for device, index in here]
    return jax.make_array_from_single_device_arrays(value.shape, sharding, parts, dtype=value.dtype)


def placed(state: dict[str, Any], rows: tuple[int, ...], first: int) -> dict[str, Any]:
    """The state over four processes of two devices.

    Args:
      rows: where the stages' rows of the array in pieces begin and end.
      first: the process at which the stages begin.
    """
    devices = np.roll(np.array(jax.devices()), -2 * first)
    whole = Mesh(devices.reshape(4, 2), ("x", "y"))
    stages = [Mesh(half.reshape(2, 2), ("x", "y")) for half in (devices[:4], devices[4:])]
    alone = Mesh(devices[4:6], ("x",))

    def over(mesh: Mesh, *spec: Any) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*spec))

    slices = tuple(((low, high),) for low, high in pairwise(rows))
    in_stages = staged.PiecesLayout(
        jax.core.ShapedArray((8, 12), np.float32), slices, (over(stages[0], None, "y"), over(stages[1], None, "x"))
    )
    pieces = [put(state["staged"][slice(*at)], s) for (at,), s in zip(slices, in_stages.shardings, strict=True)]
    fused = StoredLayout(
        jax.core.ShapedArray((8, 12), np.float32), (8, 3, 4), over(whole, "y", None, "x"), over(whole, "y", "x"),
        (over(whole, "y"), over(whole, "y")),
    )  # fmt: skip
    keys = over(alone, "x")
    bits = put(state["key"], over(alone, "x", None))
    parts = [jax.random.wrap_key_data(shard.data) for shard in bits.addressable_shards]
    return {
        "everywhere": put(state["everywhere"], over(whole, "x", "y")),
        "copies": put(state["copies"], over(whole)),
        "more copies": put(state["more copies"], over(whole)),
        "stage": put(state["stage"], over(stages[1], "y")),
        "process": put(state["process"], over(alone, "x")),
        "staged": StagedArray(pieces, in_stages),
        "strided": StridedArray(put(state["strided"].reshape(8, 3, 4), fused.sharding), fused),
        "key": jax.make_array_from_single_device_arrays((4,), keys, parts, dtype=jax.random.key(0).dtype),
        "weak": weakly_typed(put(state["weak"], over(alone))),
        "own": jnp.float32(7),
        "numpy": state["numpy"],
        "number": state["number"],
    }


def assert_same(found: Any, wanted: Any) -> None:
    """Both are the same here: of the same arrays, with the same bits in every shard of this process."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for name in wanted:
        ours, theirs = found[name], wanted[name]
        assert type(ours) is type(theirs), name
        if not isinstance(theirs, jax.Array | StagedArray | StridedArray):
            np.testing.assert_array_equal(ours, theirs)
            continue
        for a, b in zip(arrays_of(ours), arrays_of(theirs), strict=True):
            assert (a.aval, a.sharding) == (b.aval, b.sharding), name
            shards = list(zip(a.addressable_shards, b.addressable_shards, strict=True))
            for x, y in shards:
                x, y = (jax.random.key_data(z.data) if name == "key" else z.data for z in (x, y))
                assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), name


def main(address: str, count: str, index: str, folder: str) -> None:
    """Save, restore as other stages, save by a manager, restore what plain Orbax wrote, and refuse another state."""
    jax.distributed.initialize(address, int(count), int(index))
    path = Path(folder)
    state = placed(values(), (0, 3, 8), 0)
    wrote = {"elements": 0}
    real = arrays._host_leaf

    def host_leaf(*args: Any) -> Any:
        leaf = real(*args)
        wrote["elements"] += sum(fragment.value.size for fragment in leaf.fragments)
        return leaf

    arrays._host_leaf = host_leaf
    save(path / "ours", state)
    print(json.dumps(wrote))
    assert_same(restore(path / "ours", state), state)
    other = placed(values(), (0, 6, 8), 1)
    assert_same(restore(path / "ours", other), other)
    assert_same(restore(path / "plain", other), other)
    options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=True)
    with ocp.CheckpointManager(path / "manager", options=options) as manager:
        for number in range(2):
            manager.save(number, args=StateSave(state))
        manager.wait_until_finished()
        assert manager.all_steps() == [1]
        assert_same(manager.restore(1, args=StateRestore(other)), other)
    try:
        restore(path / "ours", {**other, "process": put(np.arange(8, dtype=np.int32), other["process"].sharding)})
    except rhino.RhinoError as error:
        print(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
