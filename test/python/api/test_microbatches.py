"""One program as a loop over micro-batches: chosen where memory needs it, or asked for; values are one device's."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import rhino
from examples.models import gpt

BATCH = 64


@pytest.fixture(scope="module")
def model() -> tuple[Any, Any, Any]:
    config = dataclasses.replace(gpt.PRESETS["tiny"], layers=2, width=32, heads=2, seq_len=64, scan=True, remat=True)
    init, train_step = gpt.make_train_step(config)
    return init, train_step, gpt.example_batch(config, BATCH)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"memory_limit": "1500KiB"}, marks=pytest.mark.long),
        {"stages": 1, "microbatches": 4, "mesh": (2, 4)},
    ],
    ids=["needed", "asked for"],
)
def test_it_trains_as_one_device_does(model: tuple[Any, Any, Any], how: dict[str, Any]) -> None:
    init, train_step, batch = model
    step = rhino.parallelize(train_step, donate_argnums=0, **how)
    key = jax.random.key(0)
    plan = step.plan(jax.eval_shape(init, key), batch)
    state, alone = step.init(init, key), init(key)
    assert plan.stages == 1
    assert plan.microbatches > 1
    assert "micro-batches  " in str(plan.summary())
    run = jax.jit(train_step)
    for _ in range(2):
        state, metrics = step(state, batch)
        alone, expected = run(alone, batch)
        np.testing.assert_allclose(float(metrics["loss"]), float(expected["loss"]), rtol=1e-5)
    # The bias of keys has no gradient: what it gets is rounding.
    for ours, theirs in zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params), strict=True):
        assert np.linalg.norm(ours - theirs) <= 1e-3 * np.linalg.norm(theirs) + 1e-5


def test_the_whole_batch_does_not_fit(model: tuple[Any, Any, Any]) -> None:
    init, train_step, batch = model
    step = rhino.parallelize(train_step, donate_argnums=0, memory_limit="1500KiB", stages=1, microbatches=1)
    with pytest.raises(rhino.RhinoError, match=r"memory limit 1\.46 MiB per device cannot be met"):
        step.plan(jax.eval_shape(init, jax.random.key(0)), batch)
