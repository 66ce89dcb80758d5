"""The prediction against what XLA compiled for H100s that are not here: memory, and bytes of every collective kind."""

from __future__ import annotations

import dataclasses
import importlib.util

import pytest

import rhino
from examples.models import gpt
from rhino.compile import collective_bytes

_LIMIT = 40 * 2**30


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax_plugins.xla_cuda13") is None, reason="needs rhino-jax[gpu-aot]")
@pytest.mark.parametrize("cluster", ["dgx-h100:1", pytest.param("dgx-h100:16", marks=pytest.mark.long)])
def test_gpt_1p3b_compiles_to_what_was_predicted(cluster: str) -> None:
    config = dataclasses.replace(gpt.PRESETS["1.3b"], scan=True, remat=True)
    _, train_step = gpt.make_train_step(config)
    state, batch = gpt.abstract_inputs(config, 64, 1024)
    step = rhino.parallelize(train_step, cluster=cluster, donate_argnums=(0,), memory_limit=_LIMIT)
    predicted = step.plan(state, batch).predicted
    compiled = step.compile(state, batch)
    peak = compiled.memory_analysis().peak_bytes
    assert peak <= _LIMIT
    assert peak == pytest.approx(predicted.peak_bytes, rel=0.25)
    measured = collective_bytes(compiled.collectives())
    assert set(measured) == set(predicted.comm_bytes)
    for kind, nbytes in measured.items():
        assert nbytes == pytest.approx(predicted.comm_bytes[kind], rel=0.15), kind
