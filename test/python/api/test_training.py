"""A found plan trains as one device does: values, donation, new shapes, and what plain jit makes of the plan."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from small_mlp import abstract_state, init, make_batch, train_step

import rhino
from rhino.api.parallelized import Parallelized

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(scope="module")
def step() -> Parallelized:
    made = rhino.parallelize(train_step, donate_argnums=(0,), mesh=(2, 4))
    made.plan(abstract_state(), make_batch())
    return made


def reference(steps: int) -> tuple[list[float], object]:
    state, losses = init(jax.random.key(0)), []
    run = jax.jit(train_step)
    for i in range(steps):
        state, metrics = run(state, make_batch(seed=i))
        losses.append(float(metrics["loss"]))
    return losses, state


def test_same_losses_and_parameters_as_one_device(step: Parallelized) -> None:
    losses, expected = reference(4)
    state, found = step.init(init, jax.random.key(0)), []
    for i in range(4):
        state, metrics = step(state, make_batch(seed=i))
        found.append(float(metrics["loss"]))
    np.testing.assert_allclose(found, losses, **CLOSE)
    # Adam makes a full step of either sign out of a gradient near zero: single weights may differ, tensors must not.
    for ours, theirs in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected.params), strict=True):
        assert np.linalg.norm(ours - theirs) <= 1e-3 * np.linalg.norm(theirs)
    assert type(state) is type(expected)
    assert jax.tree.structure(state) == jax.tree.structure(expected)


def test_all_devices_work_and_state_is_where_the_plan_says(step: Parallelized) -> None:
    plan = step.plan(abstract_state(), make_batch())
    state = step.init(init, jax.random.key(0))
    new, _ = step(state, make_batch())
    for before, after, wanted in zip(
        jax.tree.leaves(state), jax.tree.leaves(new), jax.tree.leaves(plan.in_shardings[0]), strict=True
    ):
        assert len(after.sharding.device_set) == 8
        assert before.sharding == wanted
        assert after.sharding.is_equivalent_to(wanted, after.ndim)


def test_donated_state_is_consumed_and_the_batch_is_not(step: Parallelized) -> None:
    state = step.init(init, jax.random.key(0))
    batch = jax.device_put(make_batch(), step.plan(abstract_state(), make_batch()).in_shardings[1])
    step(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(batch))


def test_a_donated_state_given_again_is_named(step: Parallelized) -> None:
    state = step.init(init, jax.random.key(0))
    step(state, make_batch())
    with pytest.raises(rhino.RhinoError, match=r"state.step has been deleted: an earlier call took its buffer"):
        step(state, make_batch())


def test_nothing_is_consumed_without_donation() -> None:
    step = rhino.parallelize(train_step, mesh=(8,))
    state = init(jax.random.key(0))
    first, _ = step(state, make_batch())
    again, _ = step(state, make_batch())
    np.testing.assert_array_equal(first.params["Dense_0"]["kernel"], again.params["Dense_0"]["kernel"])
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_arrays_placed_elsewhere_are_moved(step: Parallelized) -> None:
    losses, _ = reference(1)
    on_device_3 = jax.device_put(init(jax.random.key(0)), jax.devices()[3])
    _, metrics = step(on_device_3, make_batch())
    np.testing.assert_allclose(metrics["loss"], losses[0], **CLOSE)


def test_new_batch_shape_keeps_the_state_where_it_is() -> None:
    step = rhino.parallelize(train_step)
    state, _ = step(init(jax.random.key(0)), make_batch(64))
    placed = [leaf.sharding for leaf in jax.tree.leaves(state)]
    state, metrics = step(state, make_batch(8, seed=5))
    assert np.isfinite(metrics["loss"])
    for leaf, before in zip(jax.tree.leaves(state), placed, strict=True):
        assert leaf.sharding.is_equivalent_to(before, leaf.ndim)


def test_a_second_call_does_not_plan_again(step: Parallelized, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = step(step.init(init, jax.random.key(0)), make_batch())

    def fail(*_: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr("rhino.api.parallelized.build", fail)
    state, _ = step(state, make_batch(seed=7))
    step(state, jax.tree.map(jax.numpy.asarray, make_batch(seed=8)))


def test_plan_shardings_work_with_plain_jit(step: Parallelized) -> None:
    plan = step.plan(abstract_state(), make_batch())
    plain = jax.jit(train_step, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    losses, _ = reference(1)
    state = jax.device_put(init(jax.random.key(0)), plan.in_shardings[0])
    batch = jax.device_put(make_batch(), plan.in_shardings[1])
    state, metrics = plain(state, batch)
    np.testing.assert_allclose(metrics["loss"], losses[0], **CLOSE)
    kernel = plan.in_shardings[0].params["Dense_0"]["kernel"]
    assert isinstance(kernel, NamedSharding) and dict(kernel.mesh.shape) == {"x": 2, "y": 4}
    assert kernel.spec == plan.partition_specs[0].params["Dense_0"]["kernel"]


def test_executable_reports_memory_and_collectives_and_runs(step: Parallelized) -> None:
    exe = step.compile(abstract_state(), make_batch())
    assert exe is step.compile(abstract_state(), make_batch()), "compiled once"
    assert exe.memory_analysis().peak_bytes > 0
    assert sum(c.bytes for c in exe.collectives()) > 0
    losses, _ = reference(1)
    _, metrics = exe(step.init(init, jax.random.key(0)), make_batch())
    np.testing.assert_allclose(metrics["loss"], losses[0], **CLOSE)
    text = step.plan(abstract_state(), make_batch()).summary(measured=exe)
    assert "measured by XLA" in text and "state.params['Dense_" in text
