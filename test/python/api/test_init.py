"""Distributed initialisation: the values of one device, made in parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_mlp import abstract_state, init, make_batch, train_step

import rhino


def test_values_are_those_of_one_device() -> None:
    step = rhino.parallelize(train_step, mesh=(8,))
    step.plan(abstract_state(), make_batch())
    state, expected = step.init(init, jax.random.key(3)), init(jax.random.key(3))
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_no_device_ever_holds_the_whole_state() -> None:
    rows = 1 << 16

    def make(key: jax.Array) -> dict[str, jax.Array]:
        return {"w": jax.random.normal(key, (rows, 64))}

    def step_fn(state: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return {"w": state["w"] - 1e-3 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(state["w"])}

    # The state is 16 MiB, and a device may use 12: only a split state fits, whatever the plan.
    step = rhino.parallelize(step_fn, donate_argnums=0, memory_limit="12MiB")
    x = jax.ShapeDtypeStruct((8, rows), jnp.float32)
    plan = step.plan(jax.eval_shape(make, jax.random.key(0)), x)
    whole = rows * 64 * 4
    compiled = jax.jit(make, out_shardings=plan.in_shardings[0]).lower(jax.random.key(0)).compile()
    stats = compiled.memory_analysis()
    assert stats.output_size_in_bytes + stats.temp_size_in_bytes < whole
    assert step.init(make, jax.random.key(0))["w"].addressable_shards[0].data.nbytes < whole


def test_needs_a_plan() -> None:
    with pytest.raises(rhino.RhinoError, match=r"the step has none yet; call step.plan\(jax.eval_shape"):
        rhino.parallelize(train_step).init(init, jax.random.key(0))


def test_a_state_from_elsewhere_is_placed_as_planned() -> None:
    step = rhino.parallelize(train_step, mesh=(8,))
    plan = step.plan(abstract_state(), make_batch())
    restored = jax.tree.map(np.asarray, init(jax.random.key(3)))
    placed = step.place(restored)
    for ours, theirs, wanted in zip(*map(jax.tree.leaves, (placed, restored, plan.in_shardings[0])), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.sharding == wanted
    with pytest.raises(rhino.RhinoError, match="the state is no argument of the planned step"):
        step.place({"w": jnp.ones(3)})


def test_names_the_first_difference() -> None:
    step = rhino.parallelize(lambda state, x: {"w": state["w"] * x})
    step.plan({"w": jnp.ones((8, 8))}, 2.0)
    with pytest.raises(rhino.RhinoError, match=r"state\['w'\] is f32\[8,4\], and the step has f32\[8,8\]"):
        step.init(lambda: {"w": jnp.ones((8, 4))})
    with pytest.raises(rhino.RhinoError, match=r"it has \['v'\] where the step has state\['w'\]"):
        step.init(lambda: {"v": jnp.ones((8, 8))})
