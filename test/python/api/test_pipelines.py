"""`rhino.parallelize` with stages: state on the devices of its stage, and the steps of one device's program."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rhino
from examples.models import gpt, mlp
from rhino.api.pipeline import PipelineStep
from rhino.dialect.context import make_context, parse_bytes
from rhino.ir.diagnostics import PassError
from rhino.runtime import StagedArray

BATCH, STEPS = 8, 2


@pytest.fixture(scope="module", params=[pytest.param(False, marks=pytest.mark.long), True], ids=["unrolled", "scanned"])
def trained(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A tiny GPT trained for a few steps in two stages, and by itself."""
    config = dataclasses.replace(gpt.PRESETS["tiny"], layers=4, width=32, heads=2, seq_len=16, scan=request.param)
    init, train_step = gpt.make_train_step(config)
    batch = gpt.example_batch(config, BATCH)
    key = jax.random.key(0)
    step = rhino.parallelize(
        train_step, cluster="cpu:1", donate_argnums=(0,), stages=2, microbatches=2, schedule="1f1b"
    )
    plan = step.plan(jax.eval_shape(init, key), batch)
    state, alone = step.init(init, key), init(key)
    made = jax.tree.map(np.asarray, state.params), jax.tree.map(np.asarray, alone.params)
    losses = []
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        alone, expected = jax.jit(train_step)(alone, batch)
        losses.append((float(metrics["loss"]), float(expected["loss"])))
    return {
        "step": step, "plan": plan, "init": init, "batch": batch, "key": key, "state": state, "alone": alone,
        "made": made, "losses": losses, "scan": request.param,
    }  # fmt: skip


def test_losses_are_those_of_one_device(trained: dict[str, Any]) -> None:
    for ours, theirs in trained["losses"]:
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_init_makes_what_it_makes_on_one_device(trained: dict[str, Any]) -> None:
    ours, theirs = trained["made"]
    # The same random bits; jitted, their scaling is rounded once less often.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)


def test_state_stays_on_the_devices_of_its_stage(trained: dict[str, Any]) -> None:
    groups = set()
    for leaf in jax.tree.leaves(trained["state"].params):
        pieces = leaf.pieces if isinstance(leaf, StagedArray) else [leaf]
        for piece in pieces:
            groups.add(tuple(sorted(d.id for d in piece.sharding.device_set)))
    assert groups == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert any(isinstance(leaf, StagedArray) for leaf in jax.tree.leaves(trained["state"].params)) == trained["scan"]


def test_plan_says_what_was_chosen(trained: dict[str, Any]) -> None:
    plan = trained["plan"]
    assert (plan.stages, plan.groups, plan.microbatches, plan.devices) == (2, 2, 2, 8)
    assert plan.schedule == "1f1b"
    assert "2 stages, 2 micro-batches" in plan.summary()
    by_name = {tensor.name: tensor for tensor in plan.arguments}
    assert by_name["state.params['wte']['embedding']"].stages == (0,)
    with pytest.raises(rhino.RhinoError, match="a pipeline has no in_shardings"):
        _ = plan.in_shardings


def test_saved_plan_runs_a_state_from_elsewhere(trained: dict[str, Any], tmp_path: Path) -> None:
    trained["plan"].save(tmp_path / "plan.json")
    loaded = rhino.Plan.load(tmp_path / "plan.json")
    assert (loaded.stages, loaded.groups) == (2, 2)
    assert [t.stages for t in loaded.arguments] == [t.stages for t in trained["plan"].arguments]
    step = rhino.parallelize(trained["step"].__wrapped__, cluster="cpu:1", donate_argnums=(0,), plan=loaded)
    abstract = jax.eval_shape(trained["init"], trained["key"])
    step.plan(abstract, trained["batch"])
    _, metrics = step(step.place(trained["init"](trained["key"])), trained["batch"])
    assert float(metrics["loss"]) == pytest.approx(trained["losses"][0][1], rel=1e-5)


def test_executable_is_called_like_the_step(trained: dict[str, Any]) -> None:
    executable = trained["step"].compile(jax.eval_shape(trained["init"], trained["key"]), trained["batch"])
    assert isinstance(executable, PipelineStep) and executable.devices == 8
    assert executable.memory_analysis().peak_bytes > 0
    with pytest.raises(TypeError, match="was compiled for arguments of structure"):
        executable(trained["batch"])


@pytest.mark.long
def test_one_stage_in_replicas_is_a_pipeline(trained: dict[str, Any]) -> None:
    _, train_step = gpt.make_train_step(
        dataclasses.replace(gpt.PRESETS["tiny"], layers=4, width=32, heads=2, seq_len=16, scan=True)
    )
    batch, alone = trained["batch"], trained["init"](trained["key"])
    step = rhino.parallelize(
        train_step, cluster="cpu:1", donate_argnums=(0,), stages=1, schedule="1f1b", microbatches=2, mesh=(2,)
    )
    plan = step.plan(alone, batch)
    assert (plan.stages, plan.microbatches, plan.shape_name) == (1, 2, "1 stage of 4x2")
    assert "pipeline  1 stage, 2 micro-batches, 1f1b" in plan.summary()
    state = jax.tree.map(jnp.copy, alone)
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        alone, expected = jax.jit(train_step)(alone, batch)
        assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)


def test_stages_with_different_numbers_of_devices(tmp_path: Path) -> None:
    config = dataclasses.replace(mlp.PRESETS["tiny"], depth=5)
    init, train_step = mlp.make_train_step(config)
    batch, key = mlp.example_batch(config, 12), jax.random.key(0)
    step = rhino.parallelize(train_step, cluster="cpu:1", donate_argnums=(0,), stages=3, microbatches=2)
    plan = step.plan(jax.eval_shape(init, key), batch)
    assert (plan.stages, plan.groups, plan.devices, plan.group_devices) == (3, 3, 8, (3, 3, 2))
    assert "3 stages on 3+3+2 devices, 2 micro-batches" in plan.summary()
    assert "3 stages of 3+3+2" in plan.report_html()
    plan.save(tmp_path / "plan.json")
    assert rhino.Plan.load(tmp_path / "plan.json") == plan
    state, alone = step.init(init, key), init(key)
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        alone, expected = jax.jit(train_step)(alone, batch)
        assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": 0}, "stages 0 is not a number of stages"),
        ({"stages": "many"}, "stages 'many' is not a number of stages"),
        ({"stages": 9}, "9 stages for the 8 devices"),
        ({"stages": 2, "level": "O0"}, "level O0 makes no pipelines"),
    ],
)
def test_bad_requests(options: dict[str, Any], message: str) -> None:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

    with pytest.raises(rhino.RhinoError, match=message):
        rhino.parallelize(step, cluster="cpu:1", donate_argnums=(0,), **options).plan(np.ones((8, 8)), np.ones((8, 8)))


class _Trainer:
    def __call__(self, w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

    def step(self, w: jax.Array, x: jax.Array) -> jax.Array:
        return self(w, x)


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (_Trainer(), _Trainer.__call__),
        (functools.partial(_Trainer().step), _Trainer.step),
        (functools.wraps(_Trainer().step)(lambda w, x: _Trainer()(w, x)), _Trainer.step),
    ],
)
def test_what_is_wrong_with_the_whole_step_is_said_at_its_function(step: Any, line: Any) -> None:
    """jax gives @main no location."""
    piped = rhino.parallelize(step, cluster="cpu:1", stages=2, microbatches=3)
    place = re.escape(f"{__file__}:{line.__code__.co_firstlineno}:1: ")
    with pytest.raises(rhino.RhinoError, match=f"^{place}a batch of 8 examples cannot be cut into 3 equal"):
        piped.plan(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))


def normalising_step(parts: int) -> Any:
    """A step with BatchNorm in every layer, of so many parts of the batch: part i has the examples i, i + parts, .."""

    def norm(h: Any) -> Any:
        apart = h.reshape(-1, parts, h.shape[-1])
        mean, square = apart.mean(0, keepdims=True), (apart**2).mean(0, keepdims=True)
        scaled = (apart - mean) * jax.lax.rsqrt(square - mean**2 + 1e-3)
        return scaled.reshape(h.shape), mean.mean((0, 1))

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            h, means = batch["x"], []
            for w in params:
                h, mean = norm(h @ w)
                means.append(mean)
                h = jnp.tanh(h)
            return ((h - batch["y"]) ** 2).mean(), means

        (value, means), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        running = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state["means"], means)
        return {"params": params, "means": running}, value

    return step


def test_statistics_by_micro_batch_if_asked_for() -> None:
    random = np.random.default_rng(0)
    params = [random.normal(size=(16, 16)).astype(np.float32) for _ in range(4)]
    state = {"params": params, "means": [np.zeros(16, np.float32)] * 4}
    batch = {k: random.normal(size=(BATCH, 16)).astype(np.float32) for k in "xy"}
    options: dict[str, Any] = {"cluster": "cpu:1", "stages": 2, "microbatches": 2, "mesh": (4,)}
    with pytest.raises(rhino.RhinoError, match=r"not sync-free: .*; or give statistics=micro-batch"):
        rhino.parallelize(normalising_step(1), **options).plan(state, batch)
    step = rhino.parallelize(normalising_step(1), statistics="micro-batch", **options)
    plan = step.plan(state, batch)
    assert (plan.stages, plan.microbatches, plan.statistics) == (2, 2, "micro-batch")
    assert "statistics  by micro-batch, as asked for: not the numbers of one device" in plan.summary()
    found = jax.tree.map(np.asarray, step(state, batch))
    reference, whole = jax.jit(normalising_step(2))(state, batch), jax.jit(normalising_step(1))(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, reference)
    assert np.abs(found[0]["params"][0] - whole[0]["params"][0]).max() > 1e-3


def test_statistics_are_of_the_batch_or_of_micro_batches() -> None:
    with pytest.raises(rhino.RhinoError, match="statistics 'layer' is not available"):
        rhino.parallelize(normalising_step(1), statistics="layer")


def test_layers_stacked_along_another_dimension_are_kept_by_stage() -> None:
    """As MaxText stacks them, `param_scan_axis=1`: each stage has its layers of what is trained."""

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            layers = jnp.moveaxis(params["layers"], 1, 0)
            h, _ = jax.lax.scan(jax.checkpoint(lambda h, w: (h + jnp.tanh(h @ w), None)), batch["x"], layers)
            return ((h @ params["head"] - batch["y"]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
        params = jax.tree.map(lambda p, m: p - 0.01 * m, state["params"], momentum)
        return {"params": params, "momentum": momentum}, {
            "loss": value,
            "norm": sum(map(jnp.vdot, *[grads.values()] * 2)),
        }

    random = np.random.default_rng(0)
    params = {"layers": random.normal(size=(16, 4, 16)) / 4, "head": random.normal(size=(16, 16)) / 4}
    params = jax.tree.map(lambda p: p.astype(np.float32), params)
    batch = {name: random.normal(size=(8, 16)).astype(np.float32) for name in "xy"}
    ours = theirs = {"params": params, "momentum": jax.tree.map(np.zeros_like, params)}
    parallel = rhino.parallelize(step, cluster="cpu:1", donate_argnums=(0,), stages=2, microbatches=2)
    for _ in range(STEPS):
        (ours, metrics), (theirs, expected) = parallel(ours, batch), jax.jit(step)(theirs, batch)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), metrics, expected)
        assert float(sum(metrics.values())) > 0  # numbers are on the same devices, whichever stage makes them
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, theirs)
    layers = ours["momentum"]["layers"]
    assert isinstance(layers, StagedArray) and {p.shape for p in layers.pieces} == {(16, 1, 16)}


def test_replicas_bring_together_what_no_all_reduce_does() -> None:
    """The largest of numbers one of which is none, and bits."""

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            h = batch["x"]
            for w in params:
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        seen = {"most": batch["x"].max(), "least": batch["x"].min(), "bits": jnp.bitwise_or.reduce(batch["ids"])}
        return jax.tree.map(lambda p, g: p - g, params, grads), {"loss": value, **seen}

    random = np.random.default_rng(0)
    params = [random.normal(size=(16, 16)).astype(np.float32) / 4] * 4
    batch = {"x": random.normal(size=(8, 16)).astype(np.float32), "ids": np.arange(8, dtype=np.int32)}
    batch["x"][3, 5] = np.nan
    parallel = rhino.parallelize(step, cluster="cpu:1", stages=2, microbatches=2, mesh=(2,))
    assert parallel.plan(params, batch).mesh == (("replica", 2), ("x", 2))
    jax.tree.map(np.testing.assert_allclose, parallel(params, batch)[1], jax.jit(step)(params, batch)[1])


# Steps with nothing to cut: what is asked of `stages=2` is refused in words of the step, and without it they run.
BARE = {
    "hands on": (lambda w, x: (w, x), (8, 8), "nothing to divide into stages"),
    "no batch": (lambda w, x: w * x, (), "no pipeline is possible|no argument of the step is a batch"),
    "no arguments": (lambda: jnp.ones((8, 8)), None, "no argument of the step is a batch.*stages=1"),
    "no examples": (
        lambda w, x: (x @ w).sum(),
        (0, 8),
        "the batch has no examples; give some, or plan it as one program",
    ),
}


@pytest.mark.parametrize("name", BARE)
def test_steps_with_nothing_to_cut(name: str) -> None:
    step, shape, message = BARE[name]
    given = () if shape is None else (np.ones((8, 8), np.float32), np.ones(shape, np.float32))
    with pytest.raises(rhino.RhinoError, match=message) as refused:
        rhino.parallelize(step, cluster="cpu:1", stages=2).plan(*given)
    assert "rhino-" not in str(refused.value)
    found = rhino.parallelize(step, cluster="cpu:1")(*given)
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(step)(*given))


def test_what_the_search_cannot_write_is_not_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: Any, *_: Any) -> None:
        raise PassError(module, "operation without rhino.stage reads tensors of stages 0 and 1")

    def step(w: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, g: p - g, w, jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]).sum())(w))

    monkeypatch.setattr("rhino.passes.plan.plan_pipeline.write_pipeline", refuse)
    w, x = [np.ones((8, 8), np.float32)] * 2, np.ones((8, 8), np.float32)
    with pytest.raises(rhino.RhinoError, match="2 stages that was found cannot be cut here; plan it as one program"):
        rhino.parallelize(step, cluster="cpu:1", stages=2).plan(w, x)
    rhino.parallelize(step, cluster="cpu:1", stages=1).plan(w, x)


def test_what_jax_lowers_is_at_lines_of_the_user() -> None:
    step = rhino.parallelize(lambda w, x: w - jax.grad(lambda w: jnp.tanh(x @ w).sum())(w))
    step.plan(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32))
    assert step._latest is not None
    text = parse_bytes(step._latest.trace.bytecode, make_context()).operation.get_asm(enable_debug_info=True)
    assert __file__ in text and str(Path(rhino.__file__).parent) + os.sep not in text
