"""As a part of Orbax: its managers, asynchronous saving, files like its own, every type of leaf, and every refusal."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from checkpoint_models import assert_same_bits
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import rhino
from rhino.api.strided import StoredLayout, StridedArray
from rhino.checkpoint import StateHandler, StateRestore, StateSave, abstract_state, restore, save
from rhino.runtime import StagedArray, staged

MESH = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))


def over(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, PartitionSpec(*spec))


def strided(values: Any) -> StridedArray:
    """An array [16, 24] stored as [16, 3, 8], split by columns."""
    values = jnp.asarray(values)
    layout = StoredLayout(values.aval, (16, 3, 8), over(None, None, "y"), over(None, "y"), (over("y"), over("y")))
    return StridedArray(jax.device_put(values.reshape(16, 3, 8), layout.sharding), layout)


def in_stages(values: Any, cuts: tuple[int, ...]) -> StagedArray:
    """An array whose rows between two cuts are on two devices each, split by columns."""
    values = jnp.asarray(values)
    groups = [Mesh(np.array(jax.devices()[2 * i : 2 * i + 2]), ("x",)) for i in range(len(cuts) - 1)]
    shardings = tuple(NamedSharding(group, PartitionSpec(None, "x")) for group in groups)
    slices = tuple(((low, high),) for low, high in pairwise(cuts))
    layout = staged.PiecesLayout(values.aval, slices, shardings)
    return StagedArray(staged.cut(values, layout), layout)


def small() -> dict[str, Any]:
    values = np.arange(16.0 * 24).reshape(16, 24).astype(np.float32)
    return {"strided": strided(values), "staged": in_stages(values, (0, 5, 8, 16)), "plain": jnp.ones((8, 8))}


class Pair(NamedTuple):
    a: Any
    b: Any


@flax.struct.dataclass
class Flax:
    step: Any
    params: Any
    name: str = flax.struct.field(pytree_node=False, default="model")


def equinox_model() -> Any:
    """The arrays of an Equinox module, where that is installed."""
    if importlib.util.find_spec("equinox") is None:
        return None
    import equinox as eqx

    return eqx.filter(eqx.nn.MLP(4, 4, 8, 2, key=jax.random.key(0)), eqx.is_array)


def leaves() -> dict[str, Any]:
    """A state with every type of leaf and node."""
    values = np.random.default_rng(0).standard_normal((16, 24))
    params = {"w": jnp.asarray(values, jnp.bfloat16), "b": jnp.zeros(8)}
    optimizer = optax.chain(optax.clip(1.0), optax.masked(optax.adamw(1e-3), {"w": True, "b": False}))
    return {
        "bf16": jnp.asarray(values, jnp.bfloat16),
        "f16 strided": strided(values.astype(np.float16)),
        "bf16 staged": in_stages(jnp.asarray(values, jnp.bfloat16), (0, 3, 16)),
        "int8": jax.device_put(np.arange(-8, 8, dtype=np.int8), over("x")),
        "bool": jax.device_put(np.arange(8) % 3 == 0, over("y")),
        "uint32": jnp.arange(5, dtype=jnp.uint32),
        "complex": jnp.asarray([1 + 2j, 3]),
        "nan": jnp.asarray([jnp.nan, -0.0, jnp.inf]),
        "weak": jnp.asarray(2.5),
        "copies": jax.device_put(np.arange(6.0, dtype=np.float32).reshape(2, 3), over()),
        "rows": jax.device_put(np.arange(64.0, dtype=np.float32).reshape(16, 4), over(("x", "y"))),
        "key": jax.random.key(7),
        "keys": jax.device_put(jax.random.split(jax.random.key(3), 8), over("y")),
        "other key": jax.random.key(7, impl="rbg"),
        "old key": jax.random.PRNGKey(1),
        "numpy": values,
        "int": 3,
        "float": 0.1,
        "numpy number": np.float32(3),
        "text": "as it is",
        "nothing": None,
        "empty": {},
        "list": [jnp.ones(2), (jnp.zeros(3), None)],
        "named": Pair(jnp.ones(1), [jnp.ones(2)]),
        "optax": optimizer.init(params),
        "flax": Flax(0, {"w": jnp.ones((2, 2))}),
        "equinox": equinox_model(),
        "nnx": nnx.state(nnx.Linear(4, 4, rngs=nnx.Rngs(0))),
    }


def test_every_type_of_leaf_and_node_comes_back(tmp_path: Path) -> None:
    state = leaves()
    save(tmp_path / "state", state)
    found = restore(tmp_path / "state", state)
    assert_same_bits(found, state)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
        assert type(ours) is (np.ndarray if isinstance(theirs, np.generic) else type(theirs))  # as Orbax
        assert getattr(ours, "weak_type", None) == getattr(theirs, "weak_type", None)
        assert getattr(ours, "sharding", None) == getattr(theirs, "sharding", None)


def test_files_are_those_of_plain_orbax(tmp_path: Path) -> None:
    """Everything but how the arrays are cut into chunks, which follows the sharding in Orbax, too."""
    state = leaves()
    del state["text"]  # refused by Orbax's StandardCheckpointer, taken by PyTreeCheckpointer
    plain = jax.tree.map(lambda x: jax.device_put(x, jax.devices()[0]), rhino.original(state))
    plain = jax.tree.map(lambda x, y: y if isinstance(y, np.ndarray | np.number | int | float) else x, plain, state)
    save(tmp_path / "ours", state)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", plain)

    def described(name: str) -> Any:
        tree = json.loads((tmp_path / name / "_METADATA").read_text())
        for leaf in tree["tree_metadata"].values():
            leaf["value_metadata"].pop("write_shape", None)
        return tree

    def files(name: str) -> set[str]:
        return {path.name for path in (tmp_path / name).iterdir()}

    assert described("ours") == described("theirs")
    assert files("ours") == files("theirs")
    written = [json.loads((tmp_path / name / "_CHECKPOINT_METADATA").read_text()) for name in ("ours", "theirs")]
    assert written[0]["item_handlers"] == written[1]["item_handlers"]
    ours, theirs = (ocp.StandardCheckpointer().restore(tmp_path / name) for name in ("ours", "theirs"))
    assert_same_bits(ours, theirs)
    assert [getattr(x, "sharding", None) for x in jax.tree.leaves(ours)] == [
        getattr(x, "sharding", None) for x in jax.tree.leaves(theirs)
    ]
    assert_same_bits(restore(tmp_path / "theirs", state), state)


def test_orbax_manager_saves_while_the_next_step_takes_the_state(tmp_path: Path) -> None:
    @jax.jit
    def advance(tree: Any) -> Any:
        return jax.tree.map(lambda x: x + 1, tree)

    donating = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2 + 1, tree), donate_argnums=0)
    stored = {"w": jax.device_put(np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024), over("x", "y"))}
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
    expected = {}
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for number in range(4):
            stored = advance(stored)
            expected[number] = jax.tree.map(np.array, stored)
            assert manager.save(number, args=StateSave(stored))
            stored = donating(stored)
        manager.wait_until_finished()
        assert (manager.latest_step(), manager.all_steps()) == (3, [2, 3])
        for number in (2, 3):
            assert_same_bits(manager.restore(number, args=StateRestore(stored)), expected[number])
    # Whoever has no Rhino: a manager of its own, with Orbax's own arguments or none.
    with ocp.CheckpointManager(tmp_path) as plain:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=over("y")), stored)
        assert_same_bits(plain.restore(3, args=ocp.args.StandardRestore(like)), expected[3])
        assert plain.item_metadata(3)["w"].shape == (1024, 1024)


def test_a_process_that_dies_while_it_saves_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    program = f"""
import os, jax.numpy as jnp, orbax.checkpoint as ocp
from rhino.checkpoint import StateSave, arrays
with ocp.CheckpointManager({str(tmp_path)!r}) as manager:
    manager.save(0, args=StateSave({{"w": jnp.arange(4.0)}}))
    manager.wait_until_finished()
    write = arrays.write_arrays
    async def dying(*args, **options):
        await write(*args, **options)
        os._exit(9)
    arrays.write_arrays = dying
    manager.save(1, args=StateSave({{"w": jnp.zeros(4)}}))
    manager.wait_until_finished()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 9, done.stderr
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [0]
        np.testing.assert_array_equal(manager.restore(0, args=StateRestore({"w": jnp.zeros(4)}))["w"], np.arange(4.0))


def test_keys_and_their_bits_restore_into_each_other(tmp_path: Path) -> None:
    """A pipeline keeps keys as bits."""
    keys = jax.random.split(jax.random.key(1), 8)
    state = {"keys": jax.device_put(keys, over("x"))}
    bits = {"keys": jax.device_put(jax.random.key_data(keys), over("y"))}
    save(tmp_path / "keys", state)
    save(tmp_path / "bits", bits)
    assert_same_bits(restore(tmp_path / "keys", bits), bits)
    assert_same_bits(restore(tmp_path / "bits", state), state)


def test_the_state_is_one_item_among_others(tmp_path: Path) -> None:
    state = small()
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=ocp.args.Composite(state=StateSave(state), data=ocp.args.JsonSave({"epoch": 3})))
        manager.wait_until_finished()
        found = manager.restore(
            1, args=ocp.args.Composite(state=StateRestore(abstract_state(state)), data=ocp.args.JsonRestore())
        )
    assert_same_bits(found["state"], state)
    assert found["data"] == {"epoch": 3}
    assert_same_bits(restore(tmp_path / "1/state", state), state)


def test_orbax_checkpointers_take_the_handler(tmp_path: Path) -> None:
    state = small()
    with ocp.AsyncCheckpointer(StateHandler()) as checkpointer:
        checkpointer.save(tmp_path / "a", args=StateSave(state, custom_metadata={"note": 1}))
        checkpointer.wait_until_finished()
        assert_same_bits(checkpointer.restore(tmp_path / "a", args=StateRestore(state)), state)
    assert ocp.StandardCheckpointer().metadata(tmp_path / "a").item_metadata.custom_metadata == {"note": 1}


def test_what_a_state_cannot_be_saved_as(tmp_path: Path) -> None:
    gone = small()
    gone["strided"].delete()
    for state, message in [
        ({"a": {"b": object()}}, r"\['a'\]\['b'\] is a object, which no checkpoint can hold; save only arrays"),
        (gone, r"\['strided'\] has been deleted: a step took its buffer, as donated; save the state that the step ret"),
        ({"a": jnp.zeros((0, 3))}, r"\['a'\] has shape \(0, 3\), and Orbax saves no array without elements"),
    ]:
        with pytest.raises(rhino.RhinoError, match=message):
            save(tmp_path / "state", state)
        assert not (tmp_path / "state").exists()
    save(tmp_path / "state", {"a": jnp.ones(1)})
    with pytest.raises(rhino.RhinoError, match=r"state exists already; give another path, or force=True"):
        save(tmp_path / "state", {"a": jnp.ones(2)})
    save(tmp_path / "state", {"a": jnp.ones(2)}, force=True)
    assert restore(tmp_path / "state", {"a": jnp.zeros(2)})["a"].shape == (2,)


def test_a_checkpoint_of_another_state_says_in_what(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = {"params": {"w": strided(np.zeros((16, 24), np.float32)), "b": jnp.zeros(8)}, "opt": Pair(jnp.ones(3), "x")}
    save(path, state)
    wide = jnp.zeros((16, 32))
    for change, message in [
        ({"params": {"w": state["params"]["w"]}}, "the checkpoint in .*state has params.b, and the state does not"),
        ({"params": {**state["params"], "v": wide}}, "the state has params.v, and the checkpoint in .* does not; res"),
        ({"params": {**state["params"], "w": wide}}, r"params.w is f32\[16,24\] in the checkpoint, and f32\["),
        ({"opt": Pair(jnp.ones(3, jnp.bfloat16), "x")}, r"opt.a is f32\[3\] in the checkpoint, and bf16\[3\]"),
        ({"opt": Pair(jnp.ones(3), jnp.ones(1))}, r"opt.b is text in the checkpoint, and the state has f32\[1\]"),
    ]:
        with pytest.raises(rhino.RhinoError, match=message):
            restore(path, {**state, **change})
    with pytest.raises(rhino.RhinoError, match="give StateRestore"), ocp.Checkpointer(StateHandler()) as checkpointer:
        checkpointer.restore(path)
    unplanned = rhino.parallelize(lambda state: state, cluster="cpu:1")
    with pytest.raises(rhino.RhinoError, match="restoring a state needs a plan, and the step has none yet"):
        restore(path, unplanned)
    unplanned.plan(state["params"]["b"])
    with pytest.raises(rhino.RhinoError, match="the step has 1 arrays or pytrees as positional arguments, no 1"):
        restore(path, unplanned, argument=1)


# Orbax reads the metadata of all arrays at once, and leaves the others when one fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damaged_and_foreign_directories(tmp_path: Path) -> None:
    state = small()
    with pytest.raises(rhino.RhinoError, match=r"there is no checkpoint in .*nowhere"):
        restore(tmp_path / "nowhere", state)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/readme").write_text("something else")
    with pytest.raises(rhino.RhinoError, match="foreign is no checkpoint of a pytree, or is damaged"):
        restore(tmp_path / "foreign", state)
    save(tmp_path / "good", state)
    data = [file for file in sorted((tmp_path / "good").rglob("d/*")) if file.is_file()]
    assert data
    for number, damage in enumerate(["shorter", "gone", "metadata"]):
        path = tmp_path / f"damaged{number}"
        shutil.copytree(tmp_path / "good", path)
        if damage == "metadata":
            (path / "_METADATA").write_text("{")
        for file in data:
            copy = path / file.relative_to(tmp_path / "good")
            if damage == "shorter":
                copy.write_bytes(copy.read_bytes()[: file.stat().st_size // 2])
            if damage == "gone":
                copy.unlink()
        with pytest.raises(rhino.RhinoError, match="damaged"):
            restore(path, state)


def test_without_orbax_the_error_says_what_to_install() -> None:
    program = (
        "import sys\nsys.modules['orbax'] = None\nimport rhino\ntry:\n    rhino.checkpoint\n"
        "except rhino.RhinoError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "checkpoints need orbax-checkpoint>=0.12.8,<0.13" in done.stdout, done.stderr
    assert "pip install 'rhino-jax[checkpoint]'" in done.stdout
