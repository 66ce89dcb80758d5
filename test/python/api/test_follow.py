"""Functions over the same state keep its shardings; plans brought from files are used, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from small_mlp import abstract_state, eval_step, init, make_batch, train_step

import rhino
from rhino.api.plan import Plan
from rhino.plan import Machine


@pytest.fixture(scope="module")
def step() -> Any:
    made = rhino.parallelize(train_step, mesh=(2, 4))
    made.plan(abstract_state(), make_batch())
    return made


def test_evaluation_takes_the_state_as_training_keeps_it(step: Any) -> None:
    evaluate = rhino.parallelize(eval_step, follow=step)
    state, batch = step.init(init, jax.random.key(0)), make_batch(8)
    ours = evaluate.plan(state, batch)
    training = {a.name: a.sharding for a in step.plan(abstract_state(), make_batch()).arguments}
    assert ours.mesh == (("x", 2), ("y", 4))
    followed = [a for a in ours.arguments if a.name.startswith("state.")]
    assert followed and all(a.sharding == training[a.name] for a in followed)
    expected = eval_step(init(jax.random.key(0)), batch)
    np.testing.assert_allclose(evaluate(state, batch), expected, rtol=1e-4)


def test_a_part_of_the_state_is_followed_too(step: Any) -> None:
    def predict(params: Any, x: jax.Array) -> jax.Array:
        return abstract_state().apply_fn({"params": params}, x)

    plan = rhino.parallelize(predict, follow=step).plan(abstract_state().params, make_batch()["x"])
    training = {a.name: a.sharding for a in step.plan(abstract_state(), make_batch()).arguments}
    for argument in plan.arguments[:-1]:
        assert argument.sharding == training[f"state.{argument.name}"]


def test_follow_needs_a_plan() -> None:
    evaluate = rhino.parallelize(eval_step, follow=rhino.parallelize(train_step))
    with pytest.raises(rhino.RhinoError, match="the step to follow has no plan yet; plan, compile or call it first"):
        evaluate.plan(abstract_state(), make_batch())


def test_a_loaded_plan_runs_without_searching(step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = step.plan(abstract_state(), make_batch())
    plan.save(tmp_path / "plan.json")
    monkeypatch.setattr("rhino.api.build.plan_module", None)
    again = rhino.parallelize(train_step, plan=Plan.load(tmp_path / "plan.json"))
    found = again.plan(abstract_state(), make_batch())
    assert found == plan and found.in_shardings == plan.in_shardings
    ours, theirs = again(init(jax.random.key(0)), make_batch())[1], step(init(jax.random.key(0)), make_batch())[1]
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-6)


def test_a_loaded_plan_of_a_changed_program_fixes_its_arguments_only(tmp_path: Path) -> None:
    def make(rate: float) -> Any:
        return lambda w, x: w - rate * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

    w, x = np.ones((64, 64), np.float32), np.ones((16, 64), np.float32)
    rhino.parallelize(make(0.1), mesh=(4, 2)).plan(w, x).save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    step = rhino.parallelize(make(0.5), plan=loaded)
    np.testing.assert_allclose(step(w, x), make(0.5)(w, x), rtol=1e-5)
    found = step.plan(w, x)
    assert found.mesh == loaded.mesh and found.program != loaded.program
    assert [a.sharding for a in found.arguments] == [a.sharding for a in loaded.arguments]


def test_names_are_no_part_of_a_loaded_plan(step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = step.plan(abstract_state(), make_batch())
    plan.save(tmp_path / "plan.json")
    monkeypatch.setattr("rhino.api.build.plan_module", None)

    def improve(training: Any, examples: Any) -> Any:
        return train_step(training, examples)

    found = rhino.parallelize(improve, plan=Plan.load(tmp_path / "plan.json")).plan(abstract_state(), make_batch())
    assert found.program == plan.program
    assert [a.sharding for a in found.arguments] == [a.sharding for a in plan.arguments]
    assert found.arguments[-1].name.startswith("examples[") and found.arguments[0].name.startswith("training.")
    # The order is: what stands elsewhere is another argument.
    with pytest.raises(rhino.RhinoError, match=r"another function: it has state.step where this has batch\["):
        rhino.parallelize(lambda batch, state: train_step(state, batch), plan=plan).plan(make_batch(), abstract_state())


def test_a_loaded_plan_is_for_its_cluster(step: Any, tmp_path: Path) -> None:
    def plan_on(cluster: Any, plan: Plan) -> Plan:
        return rhino.parallelize(train_step, plan=plan, cluster=cluster).plan(abstract_state(), make_batch())

    h100 = rhino.parallelize(train_step, cluster="dgx-h100:1").plan(abstract_state(), make_batch())
    h100.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == h100 and loaded.machine == Machine("h100", 1, 8)
    message = r"the plan is for cluster dgx-h100:1, 1 host of 8 h100, and cluster local:1 is 1 host of 8 cpu"
    with pytest.raises(rhino.RhinoError, match=message):
        plan_on(rhino.Cluster.local(), loaded)
    with pytest.raises(rhino.RhinoError, match="1 host of 8 h100, and cluster dgx-a100:1 is 1 host of 8 a100"):
        plan_on("dgx-a100:1", loaded)
    assert plan_on("dgx-h100:1", loaded) == h100 == plan_on(None, loaded)
    # Another name for the same devices is no other cluster, but one with less memory is.
    cluster = rhino.Cluster.load("dgx-h100:1")
    assert plan_on(replace(cluster, name="ours:1"), loaded) == h100
    small = replace(cluster, device=replace(cluster.device, memory_bytes=h100.predicted.peak_bytes - 1))
    with pytest.raises(rhino.RhinoError, match=r"the plan needs .* of a device, which has .*; plan again"):
        plan_on(small, loaded)
    with pytest.raises(rhino.RhinoError, match="the plan is for cluster 'ours:1', and that is no preset here"):
        plan_on(None, replace(loaded, cluster="ours:1"))


def test_a_loaded_plan_that_does_not_fit_is_refused_by_name(step: Any) -> None:
    plan = step.plan(abstract_state(), make_batch())
    other = rhino.parallelize(train_step, plan=plan)
    with pytest.raises(rhino.RhinoError, match=r"has batch\['x'\] as f32\[32,64\], and this call as f32\[16,64\]"):
        other.plan(abstract_state(), make_batch(16))
    with pytest.raises(rhino.RhinoError, match=r"another function: it has state.step where this has params\["):
        rhino.parallelize(lambda params: params, plan=plan).plan({"w": np.ones(8)})
    with pytest.raises(rhino.RhinoError, match="the plan is for 8 devices, and cluster dgx-h100:2 has 16"):
        rhino.parallelize(train_step, plan=plan, cluster="dgx-h100:2").plan(abstract_state(), make_batch())
