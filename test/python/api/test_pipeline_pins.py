"""Another batch for a pipeline, another function of its state: the state stays on the stages that keep it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pinned_steps import loss_of, places, towers, transformer

import rhino
from rhino.api.stage_pins import moves, stage_pins

MODELS = {
    "towers": lambda: towers((256, 128), (128, 128, 512)),
    "transformer": lambda: transformer(3, scan=False),
    "scanned": lambda: transformer(4, scan=True),
}


def moved_by_hand(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Collects the shapes of arrays that the runtime moves before a step; those of the host are batches."""
    from rhino.runtime import places as runtime

    found: list[tuple[int, ...]] = []
    put = runtime.put

    def watched(leaf: Any, sharding: Any) -> Any:
        if isinstance(leaf, jax.Array):
            there = leaf.committed and leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
            found.extend([] if there else [leaf.shape])
        return put(leaf, sharding)

    monkeypatch.setattr(runtime, "put", watched)
    return found


# What is asked for, and when it is trained: always, with `--slow`, or with `--all`.
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...], str]] = {
    "towers": ("towers", {"stages": 4}, (16, 12, 16), "long"),
    "not donated": ("towers", {"stages": 4, "donate_argnums": ()}, (16, 12, 16), "long"),
    # Stages of 3, 3 and 2 devices, each with a mesh of its own.
    "uneven": ("towers", {"stages": 3}, (16, 12, 16), "long"),
    # Two replicas of each stage, which do not divide the batch: a stage is one then, on the devices of both.
    "replicas": ("towers", {"stages": 2, "mesh": (2,)}, (16, 7, 16), "long"),
    # Two groups of devices, each with two of the stages.
    "interleaved": ("towers", {"stages": 4, "schedule": "interleaved-1f1b"}, (16, 12, 16), ""),
    "interleaved, scanned": ("scanned", {"stages": 4, "schedule": "interleaved-1f1b"}, (16, 12, 16), "long"),
    "transformer": ("transformer", {"stages": 2}, (16, 12, 16), "long"),
    "scanned": ("scanned", {"stages": 2}, (12, 16), "long"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[getattr(pytest.mark, when) for when in [CASES[c][-1]] if when]) for c in CASES]
)
def test_a_smaller_batch_moves_no_state(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked, sizes, _ = CASES[case]
    init, train_step, batch = MODELS[model]()
    key = jax.random.key(0)
    options: Any = {"cluster": "cpu:1", "donate_argnums": (0,), "microbatches": 4, **asked}
    step = rhino.parallelize(train_step, **options)
    step.plan(jax.eval_shape(init, key), batch(16))
    state, alone = step.init(init, key), jax.jit(init)(key)
    state, alone = step(state, batch(16))[0], jax.jit(train_step)(alone, batch(16))[0]
    before = places(state)
    moved = moved_by_hand(monkeypatch)
    for size in sizes:
        with warnings.catch_warnings():
            warnings.simplefilter("error", rhino.RhinoWarning)
            state, metrics = step(state, batch(size))
        alone, expected = jax.jit(train_step)(alone, batch(size))
        assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-4)
        assert places(state) == before
    assert moved == []
    first, smaller = step._built.values()
    assert first.plan.stages == smaller.plan.stages == asked["stages"]
    assert moves(smaller.plan, stage_pins(smaller.trace, first.plan, first.trace)) == []
    # Nor is a weight sent from where it is, in each step.
    assert sent_arguments(smaller.plan) == sent_arguments(first.plan)


def sent_arguments(plan: rhino.Plan) -> int:
    """How many values @main takes and sends to another stage as they are."""
    main = plan.module.split("func.func @main(")[1]
    return sum("= mpmd.transfer" in line and "%arg" in line for line in main.splitlines())


def test_evaluation_reads_the_state_where_training_keeps_it() -> None:
    init, train_step, batch = MODELS["towers"]()
    step = rhino.parallelize(train_step, cluster="cpu:1", stages=4, microbatches=4)
    state = jax.eval_shape(init, jax.random.key(0))
    trained = step.plan(state, batch(16))
    evaluate = rhino.parallelize(loss_of, follow=step)
    found = evaluate.plan(state["params"], batch(10))
    where = {t.name.removeprefix("state['params']"): t.stages for t in trained.arguments}
    assert all(where[t.name.removeprefix("params")] == t.stages for t in found.arguments if t.role == "param")


@pytest.mark.slow
def test_functions_of_state_that_replicas_share_out_leave_it_there() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(0.05), optax.adam(1e-2))

    def init(key: jax.Array) -> Any:
        params = {
            name: jax.random.normal(k, (64, 64)) * 0.1 for name, k in zip("abcd", jax.random.split(key, 4), strict=True)
        }
        return {"params": params, "opt": optimizer.init(params)}

    def loss(params: Any, x: jax.Array) -> jax.Array:
        for name in "abcd":
            x = jnp.tanh(x @ params[name])
        return (x**2).mean()

    def train(state: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(state["params"], x)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    def evaluate(state: Any, x: jax.Array) -> jax.Array:
        return loss(state["params"], x)

    def norms(state: Any, x: jax.Array) -> jax.Array:
        return loss(state["params"], x) + sum((leaf**2).sum() for leaf in jax.tree.leaves(state["opt"][1][0].mu))

    key, x = jax.random.key(0), jax.random.normal(jax.random.key(1), (16, 64))
    # Momenta on every replica would take 128 KiB with what else is kept.
    options: Any = {"cluster": "cpu:1", "stages": 2, "mesh": (1,), "microbatches": 2, "memory_limit": 120_000}
    step = rhino.parallelize(train, donate_argnums=(0,), **options)
    plan = step.plan(jax.eval_shape(init, key), x)
    moments = [t for t in plan.arguments if t.role == "opt_state" and t.shape]
    assert moments and all(t.sharding == (("replica",), ()) for t in moments)
    state, alone = step.init(init, key), jax.jit(init)(key)
    before = places(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rhino.RhinoWarning)
        for size in (16, 16, 7, 8):
            (state, value), (alone, expected) = step(state, x[:size]), jax.jit(train)(alone, x[:size])
            assert float(value) == pytest.approx(float(expected), rel=1e-4)
        for function in (evaluate, norms):
            found = rhino.parallelize(function, follow=step)(state, x)
            assert float(found) == pytest.approx(float(function(alone, x)), rel=1e-4)
    assert places(state) == before


def layers(order: tuple[str, ...]) -> Any:
    """A step over the same state with its layers in some order."""

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            y = x
            for name in order:
                y = jnp.tanh(y @ params[name])
            return (y**2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def test_state_that_no_stages_leave_in_place_is_told_with_its_bytes(tmp_path: Path) -> None:
    params = {name: np.eye(32, dtype=np.float32) for name in "abcd"}
    x = np.ones((16, 32), np.float32)
    first = rhino.parallelize(layers(("a", "b", "c", "d")), cluster="cpu:1", stages=2, microbatches=4)
    plan = first.plan(params, x)
    assert [t.stages for t in plan.arguments] == [(0,), (0,), (1,), (1,), (0,)]
    plan.save(tmp_path / "plan.json")
    changed = rhino.parallelize(
        layers(("d", "b", "c", "a")), cluster="cpu:1", plan=rhino.Plan.load(tmp_path / "plan.json")
    )
    with pytest.warns(rhino.RhinoWarning) as told:
        changed.plan(params, x)
    text = str(told[0].message)
    assert text.startswith("step moves 8.00 KiB of its state: params['a'], params['d'] between stages in each call")
    assert "no stages leave params['d'] on stage 1 and params['b'] on stage 0" in text
    # Where the plan can be kept it is.
    again = rhino.parallelize(
        layers(("b", "a", "d", "c")), cluster="cpu:1", plan=rhino.Plan.load(tmp_path / "plan.json")
    )
    assert [t.stages for t in again.plan(params, x).arguments[:4]] == [(0,), (0,), (1,), (1,)]


def test_a_plan_without_its_module_pins_nothing() -> None:
    params, x = {name: np.eye(512, dtype=np.float32) for name in "ab"}, np.ones((256, 512), np.float32)
    plan = rhino.parallelize(layers(("a", "b")), cluster="cpu:1", stages=2, microbatches=4).plan(params, x)
    changed = rhino.parallelize(layers(("b", "a")), cluster="cpu:1", plan=replace(plan, source=None))
    assert [t.stages for t in changed.plan(params, x).arguments[:2]] == [(1,), (0,)]
