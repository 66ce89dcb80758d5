"""Steps that store fused parameters strided train as one device does, and show the shapes that the user wrote."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_fused import STORED, WIDTH, abstract_state, eval_step, init, make_batch, train_step

import rhino
from rhino.api.plan import Plan

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def step() -> Any:
    made = rhino.parallelize(train_step, donate_argnums=0, mesh=(2, 4))
    made.plan(abstract_state(), make_batch())
    return made


def trained(step: Any, state: Any, steps: int) -> tuple[Any, list[float]]:
    losses = []
    for i in range(steps):
        state, loss = step(state, make_batch(seed=i))
        losses.append(float(loss))
    return state, losses


def assert_same(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, **CLOSE)


def test_fused_parameters_and_their_moments_are_strided(step: Any) -> None:
    state, _ = trained(step, step.init(init, jax.random.key(0)), 1)
    for tree in (state["params"], state["opt"][0].mu, state["opt"][0].nu):
        assert {name: leaf.stored.shape for name, leaf in tree.items() if type(leaf) is rhino.StridedArray} == STORED
        assert tree["qkv"].shape == (WIDTH, 3 * WIDTH)


def test_trains_as_one_device_does(step: Any) -> None:
    ours, losses = trained(step, step.init(init, jax.random.key(0)), 4)
    expected, wanted = trained(jax.jit(train_step), init(jax.random.key(0)), 4)
    np.testing.assert_allclose(losses, wanted, **CLOSE)
    assert_same(ours, expected)


def test_init_makes_the_values_of_one_device_in_parts(step: Any) -> None:
    state = step.init(init, jax.random.key(3))
    assert_same(state, init(jax.random.key(3)))
    qkv = state["params"]["qkv"]
    argument = next(
        a for a in step.plan(abstract_state(), make_batch()).arguments if a.name == "state['params']['qkv']"
    )
    parts = [int(np.prod([{"x": 2, "y": 4}[axis] for axis in axes])) for axes in argument.sharding]
    shard = tuple(size // n for size, n in zip(STORED["qkv"], parts, strict=True))
    assert {part.data.shape for part in qkv.stored.addressable_shards} == {shard}


def test_no_device_ever_holds_a_whole_leaf() -> None:
    rows, width = 1024, 2048

    def make(key: jax.Array) -> Any:
        return {"w": jax.random.normal(key, (rows, 3 * width))}

    def update(state: Any, x: Any) -> Any:
        def loss(w: Any) -> jax.Array:
            q, k, v = jnp.split(x @ w, 3, axis=-1)
            return jnp.sum(q * k + v)

        return {"w": state["w"] - 1e-3 * jax.grad(loss)(state["w"])}

    # The state is 24 MiB, and a device may use 16.
    step = rhino.parallelize(update, donate_argnums=0, memory_limit="16MiB")
    step.plan(jax.eval_shape(make, jax.random.key(0)), jax.ShapeDtypeStruct((8, rows), jnp.float32))
    seen: list[int] = []
    whole_bytes = 4 * rows * 3 * width

    def jit(*args: Any, **options: Any) -> Any:
        jitted = real_jit(*args, **options)

        def call(*values: Any) -> Any:
            memory = jitted.lower(*values).compile().memory_analysis()
            seen.append(memory.output_size_in_bytes + memory.temp_size_in_bytes)
            return jitted(*values)

        return call

    real_jit = jax.jit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", jit)
        state = step.init(make, jax.random.key(0))
        state["w"].original()
    assert len(seen) == 2 and max(seen) < whole_bytes, seen


def test_a_strided_state_costs_a_call_nothing(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = trained(step, step.init(init, jax.random.key(0)), 1)
    batch = jax.device_put(make_batch(), step.plan(abstract_state(), make_batch()).in_shardings[1])

    def fail(*_: object) -> None:
        raise AssertionError("converted or planned again")

    monkeypatch.setattr(rhino.StridedArray, "original", fail)
    monkeypatch.setattr("rhino.api.parallelized.build", fail)
    monkeypatch.setattr(jax, "device_put", fail)
    step(state, batch)


def test_plain_arrays_of_the_original_shapes_are_taken_too(step: Any) -> None:
    expected = float(jax.jit(train_step)(init(jax.random.key(0)), make_batch())[1])
    plan = step.plan(abstract_state(), make_batch())
    state = init(jax.random.key(0))
    on_device_3 = jax.device_put(state, jax.devices()[3])
    as_planned = jax.device_put(state, plan.in_shardings[0])
    for given in (state, jax.tree.map(np.asarray, state), on_device_3, as_planned):
        new, loss = step(given, make_batch())
        np.testing.assert_allclose(loss, expected, **CLOSE)
        assert isinstance(new["params"]["qkv"], rhino.StridedArray)


def test_donated_leaves_are_consumed_and_say_so(step: Any) -> None:
    state = step.init(init, jax.random.key(0))
    step(state, make_batch())
    qkv = state["params"]["qkv"]
    assert qkv.is_deleted() and "deleted" in repr(qkv)
    for use in (np.asarray, jnp.sum, lambda leaf: leaf + 1, rhino.original):
        with pytest.raises(RuntimeError, match="deleted"):
            use(qkv)
    with pytest.raises(rhino.RhinoError, match=r"state\['opt'\]\[0\].count has been deleted: an earlier call took its"):
        step(state, make_batch())


def test_original_gives_plain_arrays_which_the_step_takes_back(step: Any) -> None:
    state, _ = trained(step, step.init(init, jax.random.key(0)), 1)
    plain = rhino.original(state)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(plain))
    assert_same(plain, state)
    placed = step.place(jax.tree.map(np.asarray, plain))
    assert isinstance(placed["params"]["qkv"], rhino.StridedArray)
    a, b = step(plain, make_batch(seed=1))[1], step(placed, make_batch(seed=1))[1]
    assert float(a) == float(b)


def test_evaluation_takes_the_state_as_training_keeps_it(step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = rhino.parallelize(eval_step, follow=step)
    state, _ = trained(step, step.init(init, jax.random.key(0)), 2)
    expected, _ = trained(jax.jit(train_step), init(jax.random.key(0)), 2)
    np.testing.assert_allclose(evaluate(state, make_batch(4)), eval_step(expected, make_batch(4)), **CLOSE)
    with monkeypatch.context() as patch:
        patch.delattr(rhino.StridedArray, "original")  # nothing is converted
        evaluate(state, make_batch(4))
    training = {a.name: (a.stored_shape, a.sharding) for a in step.plan(abstract_state(), make_batch()).arguments}
    for argument in evaluate.plan(abstract_state(), make_batch(4)).arguments[:-1]:
        assert (argument.stored_shape, argument.sharding) == training[argument.name]


def test_a_function_that_does_not_cut_the_parameter_follows_too(step: Any) -> None:
    def norms(params: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.sum(leaf**2), params)

    state = step.init(init, jax.random.key(0))
    follower = rhino.parallelize(norms, follow=step)
    assert_same(follower(state["params"]), norms(init(jax.random.key(0))["params"]))
    assert not any(argument.is_strided for argument in follower.plan(state["params"]).arguments)
    assert_same(follower.compile(state["params"])(state["params"]), norms(init(jax.random.key(0))["params"]))


def test_state_that_a_step_only_hands_on_stays_strided(step: Any) -> None:
    def warm_up(state: Any, x: Any) -> Any:
        return {"params": state["params"], "opt": state["opt"]}, eval_step(state, x), state["opt"][0].mu

    state, _ = trained(step, step.init(init, jax.random.key(0)), 1)
    mu = np.asarray(state["opt"][0].mu["qkv"])
    new, _, copy = rhino.parallelize(warm_up, follow=step, donate_argnums=0)(state, make_batch())
    assert isinstance(new["opt"][0].mu["qkv"], rhino.StridedArray)
    np.testing.assert_array_equal(new["opt"][0].mu["qkv"], mu)
    np.testing.assert_array_equal(copy["qkv"], mu)


def test_a_new_batch_shape_keeps_the_state_where_it_is(step: Any) -> None:
    state, _ = trained(step, step.init(init, jax.random.key(0)), 1)
    before = state["params"]["qkv"].stored.sharding
    state, loss = step(state, make_batch(4))
    assert np.isfinite(loss)
    assert state["params"]["qkv"].stored.sharding.is_equivalent_to(before, 3)


def test_results_without_donation_are_what_the_step_returns() -> None:
    step = rhino.parallelize(train_step, mesh=(8,))
    state = init(jax.random.key(0))
    new, loss = step(state, make_batch())
    expected, wanted = jax.jit(train_step)(state, make_batch())
    np.testing.assert_allclose(loss, wanted, **CLOSE)
    assert_same(new, expected)
    assert_same(step(new, make_batch(seed=1))[0], jax.jit(train_step)(expected, make_batch(seed=1))[0])


def test_the_executable_is_called_like_the_step(step: Any) -> None:
    exe = step.compile(abstract_state(), make_batch())
    expected = jax.jit(train_step)(init(jax.random.key(0)), make_batch())
    new, loss = exe(step.init(init, jax.random.key(0)), make_batch())
    np.testing.assert_allclose(loss, expected[1], **CLOSE)
    assert isinstance(new["params"]["qkv"], rhino.StridedArray)
    assert_same(exe(init(jax.random.key(0)), make_batch())[0], expected[0])
    assert exe.memory_analysis().alias_bytes > 0
    with pytest.raises(TypeError, match="train_step was compiled for arguments of structure"):
        exe(make_batch())


def test_keyword_only_arguments() -> None:
    def scaled(state: Any, *, x: Any) -> Any:
        return train_step(state, x)

    step = rhino.parallelize(scaled, donate_argnums=0, mesh=(2, 4))
    expected = jax.jit(train_step)(init(jax.random.key(0)), make_batch())
    np.testing.assert_allclose(step(init(jax.random.key(0)), x=make_batch())[1], expected[1], **CLOSE)
    exe = step.compile(abstract_state(), x=make_batch())
    np.testing.assert_allclose(exe(init(jax.random.key(0)), {"x": make_batch()})[1], expected[1], **CLOSE)


def test_inside_another_transformation_it_is_the_function(step: Any) -> None:
    state = step.init(init, jax.random.key(0))
    grad = jax.jit(jax.grad(lambda x: step(state, x)[1]))(make_batch())
    expected = jax.jit(jax.grad(lambda x: train_step(init(jax.random.key(0)), x)[1]))(make_batch())
    np.testing.assert_allclose(grad, expected, **CLOSE)


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_the_plan_says_both_shapes(step: Any) -> None:
    plan = step.plan(abstract_state(), make_batch())
    for tensors in (plan.arguments, plan.outputs):
        found = {t.name.split("'")[-2]: t.stored_shape for t in tensors if t.is_strided and "params" in t.name}
        assert found == STORED
        assert all(len(t.sharding) == len(t.stored_shape) for t in tensors)
    assert "f32[32,96] as [32,3,32]" in plan.summary()
    assert "f32[32,96] as [32,3,32]" in plan.report_html()
    rows = {row["name"]: row for row in plan.to_dict()["arguments"]}
    assert rows["state['params']['qkv']"]["shape"] == [32, 96]
    assert rows["state['params']['qkv']"]["stored_shape"] == [32, 3, 32]
    assert "stored_shape" not in rows["state['params']['out']"]


def test_its_shardings_are_of_the_original_shapes(step: Any) -> None:
    plan = step.plan(abstract_state(), make_batch())
    plain = jax.jit(train_step, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    expected, wanted = jax.jit(train_step)(init(jax.random.key(0)), make_batch())
    for given in (init(jax.random.key(0)), step.init(init, jax.random.key(0))):
        state, loss = plain(given, make_batch())
        np.testing.assert_allclose(loss, wanted, **CLOSE)
        assert_same(state, expected)
    qkv = step.init(init, jax.random.key(0))["params"]["qkv"]
    assert qkv.sharding == plan.in_shardings[0]["params"]["qkv"]
    shard = qkv.original().addressable_shards[0].data
    assert shard.size == qkv.stored.addressable_shards[0].data.size


def test_a_saved_plan_runs_without_searching(step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = step.plan(abstract_state(), make_batch())
    for name in ("a.json", "b.json"):
        rhino.parallelize(train_step, donate_argnums=0, mesh=(2, 4)).plan(abstract_state(), make_batch()).save(
            tmp_path / name
        )
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    loaded = Plan.load(tmp_path / "a.json")
    assert loaded == dataclasses.replace(plan, binding=None)
    monkeypatch.setattr("rhino.api.build.plan_module", None)
    again = rhino.parallelize(train_step, plan=loaded, donate_argnums=0)
    again.plan(abstract_state(), make_batch())
    state, losses = trained(again, again.init(init, jax.random.key(0)), 2)
    np.testing.assert_allclose(losses, trained(step, step.init(init, jax.random.key(0)), 2)[1], rtol=1e-6)
    assert isinstance(state["params"]["qkv"], rhino.StridedArray)


def test_a_saved_plan_of_a_changed_program_fixes_its_arguments(step: Any, tmp_path: Path) -> None:
    def slower(state: Any, x: Any) -> Any:
        new, loss = train_step(state, x)
        return new, 2 * loss

    step.plan(abstract_state(), make_batch()).save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    again = rhino.parallelize(slower, plan=loaded, donate_argnums=0)
    found = again.plan(abstract_state(), make_batch())
    assert found.program != loaded.program
    assert found.arguments == loaded.arguments
    expected = jax.jit(slower)(init(jax.random.key(0)), make_batch())[1]
    np.testing.assert_allclose(again(init(jax.random.key(0)), make_batch())[1], expected, **CLOSE)


def test_a_cluster_that_is_not_here_has_specs_of_the_original_shapes() -> None:
    plan = rhino.parallelize(train_step, cluster="dgx-h100:1", donate_argnums=0).plan(abstract_state(), make_batch())
    assert any(argument.is_strided for argument in plan.arguments)
    for spec, leaf in zip(jax.tree.leaves(plan.partition_specs[0]), jax.tree.leaves(abstract_state()), strict=True):
        assert len(spec) <= leaf.ndim


@pytest.mark.usefixtures("gpu_compiler")
def test_compiling_for_devices_that_are_not_here() -> None:
    step = rhino.parallelize(train_step, cluster="dgx-h100:1", donate_argnums=0)
    exe = step.compile(abstract_state(), make_batch())
    assert (exe.target, exe.devices) == ("h100", 8)
    assert exe.memory_analysis().alias_bytes > 0
    with pytest.raises(rhino.RhinoError, match="h100"):
        exe(init(jax.random.key(0)), make_batch())
