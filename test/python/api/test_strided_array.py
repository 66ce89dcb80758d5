"""A StridedArray is to everybody an array of its original shape; only what it stores has another."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rhino
from rhino.api.strided import StoredLayout, StridedArray, stored

VALUES = np.arange(48, dtype=np.float32).reshape(2, 24) + 1


@pytest.fixture(scope="module")
def layout() -> StoredLayout:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))
    aval = jax.typeof(jnp.zeros((2, 24)))
    whole = NamedSharding(mesh, P("x"))
    sharding = NamedSharding(mesh, P("x", None, "y"))
    return StoredLayout(aval, (2, 3, 8), sharding, NamedSharding(mesh, P("x", "y")), (whole, whole))


@pytest.fixture(scope="module")
def leaf(layout: StoredLayout) -> StridedArray:
    return StridedArray(jax.device_put(VALUES.reshape(2, 3, 8), layout.sharding), layout)


def test_it_says_what_the_original_array_says(leaf: StridedArray) -> None:
    plain = leaf.original()
    for name in ("shape", "dtype", "ndim", "size", "nbytes", "sharding", "weak_type", "itemsize", "committed"):
        assert getattr(leaf, name) == getattr(plain, name), name
    assert len(leaf) == 2 and leaf.stored.shape == (2, 3, 8)
    assert repr(leaf).startswith("StridedArray(f32[2,24] stored as [2,3,8], sharding=P")


def test_each_device_keeps_its_part_of_every_factor(leaf: StridedArray) -> None:
    (first,) = (part.data for part in leaf.stored.addressable_shards if part.device == jax.devices()[0])
    np.testing.assert_array_equal(first, VALUES.reshape(2, 3, 8)[:1, :, :2])


@pytest.mark.parametrize(
    "use",
    [
        np.asarray, jnp.asarray, jax.device_get, jnp.sin, jnp.linalg.norm, np.sum, jnp.shape, list,
        lambda a: jnp.add(a, 1), lambda a: jnp.dot(a, np.ones((24, 2), np.float32)), lambda a: jnp.concatenate([a, a]),
        lambda a: jax.lax.add(a, a), lambda a: a[1], lambda a: a[:, 3:5], lambda a: a[..., None],
        lambda a: a.at[0, 0].set(9),
        lambda a: a.T, lambda a: a.sum(axis=0), lambda a: a.astype(jnp.bfloat16), lambda a: a.reshape(4, 12),
        lambda a: -a, lambda a: a + 1, lambda a: 1 - a, lambda a: a @ a.T, lambda a: np.ones((3, 2)) @ a,
        lambda a: a / a,
        lambda a: a**2, lambda a: a == VALUES, lambda a: a > VALUES, lambda a: np.ones_like(VALUES) + a,
        lambda a: jnp.ones((2, 24)) * a, lambda a: a.item() if a.size == 1 else a.mean(), lambda a: abs(a) // 2,
        lambda a: jax.device_put(a, jax.devices()[1]), lambda a: jax.vmap(jnp.sum)(a),
        lambda a: jax.jit(lambda x: x + 1)(a), lambda a: jax.jit(lambda y: y + a)(1.0),
        lambda a: jax.grad(lambda x: (x**2).sum())(a), lambda a: jax.lax.scan(lambda c, x: (c + x.sum(), x), 0.0, a),
        lambda a: jax.jit(lambda x: x + 1).lower(a).compile()(a), lambda a: jax.block_until_ready(a),
        lambda a: jax.tree.map(jnp.asarray, {"w": a}), lambda a: jax.tree.map(operator.add, [a], [a]),
    ],
)  # fmt: skip
def test_every_use_gives_what_the_original_array_gives(leaf: StridedArray, use: Callable[[Any], Any]) -> None:
    found, expected = use(leaf), use(jnp.asarray(VALUES))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_it_is_a_leaf(leaf: StridedArray) -> None:
    (found,) = jax.tree.leaves({"w": leaf})
    assert found is leaf
    assert jax.eval_shape(lambda tree: tree, {"w": leaf})["w"].shape == (2, 24)


def test_numpy_has_a_copy_and_jax_keeps_it_on_its_devices(leaf: StridedArray) -> None:
    np.testing.assert_array_equal(np.asarray(leaf), VALUES)
    assert np.asarray(leaf, np.float64).dtype == np.float64
    assert jax.jit(lambda x: x + 1)(leaf).sharding.device_set == leaf.stored.sharding.device_set
    assert leaf.original().sharding == leaf.sharding
    with pytest.raises(ValueError, match="numpy can only have a copy"):
        leaf.__array__(copy=False)


def test_copies_stay_and_pickles_bring_plain_arrays(leaf: StridedArray) -> None:
    for made in (copy.copy(leaf), copy.deepcopy({"w": leaf})["w"]):
        assert isinstance(made, StridedArray) and made.stored is not leaf.stored
        np.testing.assert_array_equal(made, VALUES)
    read = pickle.loads(pickle.dumps({"w": leaf}))["w"]
    assert isinstance(read, jax.Array)
    np.testing.assert_array_equal(read, VALUES)


def test_what_an_array_does_not_have_is_missing(leaf: StridedArray) -> None:
    with pytest.raises(AttributeError, match="'StridedArray' object has no attribute 'colour'"):
        _ = leaf.colour
    with pytest.raises(TypeError, match="unhashable"):
        hash(leaf)
    assert not hasattr(leaf, "__cuda_array_interface__")


def test_original_makes_plain_arrays_of_a_tree(leaf: StridedArray) -> None:
    tree = rhino.original({"w": leaf, "n": 3, "none": None, "plain": VALUES})
    assert isinstance(tree["w"], jax.Array) and tree["plain"] is VALUES and tree["n"] == 3
    np.testing.assert_array_equal(tree["w"], VALUES)


@pytest.mark.parametrize("make", ["numpy", "device", "sharded", "strided", "other"])
def test_arrays_from_anywhere_are_stored(layout: StoredLayout, leaf: StridedArray, make: str) -> None:
    mesh = layout.sharding.mesh
    whole = NamedSharding(mesh, P())
    places = NamedSharding(mesh, P(None, "x", "y")), NamedSharding(mesh, P(None, ("x", "y")))
    other = StoredLayout(layout.aval, (2, 2, 12), *places, (whole, whole))
    given = {
        "numpy": VALUES,
        "device": jax.device_put(VALUES, jax.devices()[5]),
        "sharded": jax.device_put(VALUES, layout.original_sharding),
        "strided": leaf,
        "other": StridedArray(jax.device_put(VALUES.reshape(2, 2, 12), other.sharding), other),
    }[make]
    found = stored(given, layout)
    assert found.sharding == layout.sharding
    np.testing.assert_array_equal(found, VALUES.reshape(2, 3, 8))


def test_a_wrong_shape_is_refused(layout: StoredLayout) -> None:
    with pytest.raises(ValueError, match=r"has shape \(2, 24\), and is to be stored as \(2, 3, 8\)"):
        StridedArray(jnp.asarray(VALUES), layout)


def test_importing_rhino_imports_no_jax() -> None:
    import subprocess
    import sys

    code = "import sys, rhino; dir(rhino); assert 'jax' not in sys.modules; print(rhino.StridedArray.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "StridedArray", done.stderr
