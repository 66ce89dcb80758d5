"""Models with fused projections, written as users write them: strided on eight devices, they train as on one."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import rhino

# module of the example, changes to its tiny preset, the fused parameter
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt": ("gpt", {"layers": 1, "fused": True, "seq_len": 32}, "qkv"),
    "gpt-scan": ("gpt", {"layers": 2, "fused": True, "seq_len": 32, "scan": True}, "qkv"),
    "lstm": ("lstm", {"layers": 1}, "state_weight"),
}


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.long) for name in ("gpt", "gpt-scan")), "lstm"]
)
def test_three_steps_with_donation_equal_those_of_one_device(name: str) -> None:
    module, changes, fused = MODELS[name]
    model = pytest.importorskip(f"examples.models.{module}")  # the LSTM is in Equinox
    config = dataclasses.replace(model.PRESETS["tiny"], **changes)
    init, train_step = model.make_train_step(config)
    batches = [model.example_batch(config, 8, seed=i) for i in range(3)]
    step: Any = rhino.parallelize(train_step, donate_argnums=0, mesh=(2, 4))
    plan = step.plan(jax.eval_shape(init, jax.random.key(0)), batches[0])
    strided = [a for a in plan.arguments if a.is_strided]
    assert any(fused in a.name and a.role == "param" for a in strided)
    ours, theirs, alone = step.init(init, jax.random.key(0)), init(jax.random.key(0)), jax.jit(train_step)
    for batch in batches:
        ours, found = step(ours, batch)
        theirs, expected = alone(theirs, batch)
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours.params), jax.tree.leaves(theirs.params), strict=True):
        # Adam makes a full step of either sign out of a gradient near zero: single weights may differ.
        assert np.linalg.norm(np.asarray(a) - np.asarray(b)) <= 2e-2 * np.linalg.norm(b) + 1e-3
