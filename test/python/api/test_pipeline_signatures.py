"""A pipeline called otherwise than at first: other batches, other functions of its state, other types of the leaves."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rhino

CLASSES = 8


def init(key: jax.Array) -> dict[str, Any]:
    keys = jax.random.split(key, 4)
    params = {f"w{i}": jax.random.normal(k, (CLASSES, CLASSES)) for i, k in enumerate(keys)}
    # Keys of "rbg" have four numbers, which a plan may split.
    state = {"params": params, "ema": params, "lr": 0.1, "step": 0, "key": jax.random.key(7)}
    return {**state, "rbg": jax.random.key(8, impl="rbg")}


def loss_of(params: Any, x: jax.Array, label: jax.Array) -> jax.Array:
    for w in params.values():
        x = jnp.tanh(x @ w)
    return -(jax.nn.log_softmax(x) * jax.nn.one_hot(label, CLASSES)).sum(-1).mean()


def make_step(momentum: float) -> Any:
    def step(state: Any, batch: Any) -> Any:
        key, dropout = jax.random.split(state["key"])
        x = batch["x"] * jax.random.bernoulli(dropout, 0.9, batch["x"].shape)
        loss, grads = jax.value_and_grad(loss_of)(state["params"], x, batch["label"])
        # A weak rate keeps bfloat16 parameters what they are; a strong one makes them float32.
        params = jax.tree.map(lambda p, g: p - state["lr"] * g, state["params"], grads)
        ema = jax.tree.map(lambda e, p: momentum * e + (1 - momentum) * p, state["ema"], params)
        made = {"params": params, "ema": ema, "lr": state["lr"] * 0.5, "step": state["step"] + 1, "key": key}
        return {**made, "rbg": jax.random.fold_in(state["rbg"], 1)}, {"loss": loss}

    return step


def make_batch(size: int) -> dict[str, np.ndarray]:
    """As NumPy makes them: float64 and int64."""
    random = np.random.default_rng(size)
    return {"x": random.normal(size=(size, CLASSES)), "label": random.integers(0, CLASSES, size)}


def close(ours: Any, theirs: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Two whole batches and a smaller one that the micro-batches do not divide, on two stages and on one device."""
    step = rhino.parallelize(make_step(0.9), cluster="cpu:1", donate_argnums=(0,), stages=2, microbatches=4)
    key = jax.random.key(0)
    plan = step.plan(jax.eval_shape(init, key), make_batch(8))
    state, alone = step.init(init, key), init(key)
    losses, built = [], []
    for size in (8, 8, 6, 8):
        state, metrics = step(state, make_batch(size))
        alone, expected = jax.jit(make_step(0.9))(alone, make_batch(size))
        losses.append((float(metrics["loss"]), float(expected["loss"])))
        built.append(len(step._built))
    return {"step": step, "plan": plan, "state": state, "alone": alone, "losses": losses, "built": built}


def test_the_last_smaller_batch_runs_on_the_same_stages(trained: dict[str, Any]) -> None:
    for ours, theirs in trained["losses"]:
        assert ours == pytest.approx(theirs, rel=1e-5)
    close(trained["state"]["ema"], trained["alone"]["ema"])
    smaller = list(trained["step"]._built.values())[1].plan
    first = trained["plan"]
    assert (smaller.stages, smaller.mesh, smaller.schedule) == (2, first.mesh, first.schedule)
    assert (first.microbatches, 6 % smaller.microbatches) == (4, 0)


def test_types_come_back_as_from_jit(trained: dict[str, Any]) -> None:
    # One plan for all whole batches, and one for the smaller: no type has changed from step to step.
    assert trained["built"] == [1, 1, 2, 2]
    for name in ("lr", "step", "key", "rbg"):
        ours, theirs = trained["state"][name], trained["alone"][name]
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert getattr(ours, "weak_type", None) == getattr(theirs, "weak_type", None)
    for name in ("key", "rbg"):
        ours, theirs = (jax.random.key_data(trained[of][name]) for of in ("state", "alone"))
        np.testing.assert_array_equal(ours, theirs)


def test_a_rate_set_by_hand_between_steps_needs_no_new_plan(
    trained: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def next_rate(step: Any, state: Any) -> float:
        return float(step(state, make_batch(8))[0]["lr"])

    monkeypatch.setattr("rhino.api.build.plan_module", None)
    monkeypatch.setattr("rhino.runtime.building.compile_fragments", None)
    step = rhino.parallelize(make_step(0.9), cluster="cpu:1", donate_argnums=(0,), follow=trained["step"])
    for rate in (0.5, np.float32(0.5), jnp.float32(0.5)):
        state = jax.tree.map(jnp.copy, trained["state"])
        assert next_rate(step, {**state, "lr": rate}) == 0.25


def test_norm_of_a_pipelines_parameters(trained: dict[str, Any]) -> None:
    def norm(params: Any) -> jax.Array:
        return jnp.sqrt(sum(jnp.vdot(p, p) for p in jax.tree.leaves(params)))

    ours = rhino.parallelize(norm, follow=trained["step"])(trained["state"]["params"])
    assert float(ours) == pytest.approx(float(norm(trained["alone"]["params"])), rel=1e-5)


def test_evaluation_runs_on_the_stages_of_training(trained: dict[str, Any]) -> None:
    def evaluate(params: Any, batch: Any) -> jax.Array:
        return loss_of(params, batch["x"], batch["label"])

    step = rhino.parallelize(evaluate, follow=trained["step"])
    ours = step(trained["state"]["ema"], make_batch(10))
    assert float(ours) == pytest.approx(float(evaluate(trained["alone"]["ema"], make_batch(10))), rel=1e-5)
    assert step.plan(trained["state"]["ema"], make_batch(10)).stages == 2


def test_a_loaded_plan_serves_a_changed_step(trained: dict[str, Any], tmp_path: Path) -> None:
    trained["plan"].save(tmp_path / "plan.json")
    step = rhino.parallelize(make_step(0.5), cluster="cpu:1", plan=rhino.Plan.load(tmp_path / "plan.json"))
    ours, _ = step(trained["state"], make_batch(8))
    theirs, _ = jax.jit(make_step(0.5))(trained["alone"], make_batch(8))
    close(ours["ema"], theirs["ema"])
    found = step.plan(trained["state"], make_batch(8))
    assert (found.stages, found.microbatches, found.mesh) == (2, 4, trained["plan"].mesh)


def test_errors_name_the_argument(trained: dict[str, Any]) -> None:
    step, batch = trained["step"], make_batch(8)
    executable = step.compile(trained["state"], batch)
    with pytest.raises(rhino.RhinoError, match=r"batch\['label'\] is i32\[6\], and the step was compiled for i32\[8\]"):
        executable(trained["state"], {**batch, "label": make_batch(6)["label"]})
    state = jax.tree.map(jnp.copy, trained["state"])
    step(state, batch)
    with pytest.raises(rhino.RhinoError, match=r"state\['\w+'\].* has been deleted: an earlier step took its buffer"):
        step(state, batch)


def test_a_batch_that_cannot_be_cut_as_asked_is_refused_truly() -> None:
    with pytest.raises(rhino.RhinoError, match="a batch of 6 examples cannot be cut into 4 equal micro-batches"):
        rhino.parallelize(make_step(0.9), cluster="cpu:1", stages=2, microbatches=4).plan(
            jax.eval_shape(init, jax.random.key(0)), make_batch(6)
        )


@pytest.mark.long
def test_a_batch_that_no_pipeline_takes_is_one_program() -> None:
    def step(w: Any, x: jax.Array) -> Any:
        def loss(w: Any) -> jax.Array:
            y = jnp.tanh(x @ w[0]) @ w[1]
            return ((y - (y.mean(0) if len(x) < 4 else 0)) ** 2).mean()  # small batches need each other

        value, grads = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), value

    random = np.random.default_rng(0)
    ours: Any = [random.normal(size=(CLASSES, CLASSES)).astype(np.float32) for _ in range(2)]
    theirs = ours
    parallel = rhino.parallelize(step, cluster="cpu:1", donate_argnums=(0,), stages=2, microbatches=2)
    for size in (8, 3, 8):
        x = random.normal(size=(size, CLASSES))
        with pytest.warns(rhino.RhinoWarning, match="not sync-free") if size == 3 else contextlib.nullcontext():
            ours, value = parallel(ours, x)
        theirs, expected = jax.jit(step)(theirs, x)
        close((ours, value), (theirs, expected))
