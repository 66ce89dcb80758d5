"""A pipeline's plan for several hosts, run by one process: its module says what is sent here, and is what runs."""

from __future__ import annotations

import dataclasses
import re

import jax
import numpy as np
import pytest

import rhino
from examples.models import gpt
from rhino.machine.catalog import read_preset
from rhino.machine.local import share_host

CONFIG = dataclasses.replace(gpt.PRESETS["tiny"], layers=2, width=32, heads=2, seq_len=16)


@pytest.mark.long  # two processes in `distributed` send what a plan says
def test_a_plan_for_two_hosts_says_that_one_process_sends_nothing() -> None:
    init, train_step = gpt.make_train_step(CONFIG)
    batch, key = gpt.example_batch(CONFIG, 8), jax.random.key(0)
    hosts = share_host(read_preset("cpu"), 4, 1 << 32).with_hosts(2)
    step = rhino.parallelize(train_step, cluster=hosts, stages=2, microbatches=2)
    plan = step.plan(jax.eval_shape(init, key), batch)
    said = set(re.findall(r"hosts = (\[\[.*?\]\])", str(plan.source)))
    assert said == {"[[0, 1, 2, 3, 4, 5, 6, 7]]"}
    assert "steps = " not in str(plan.source)
    state = step.init(init, key)
    _, metrics = step(state, batch)
    _, wanted = jax.jit(train_step)(init(key), batch)
    np.testing.assert_allclose(float(metrics["loss"]), float(wanted["loss"]), rtol=1e-5)
    assert step.plan(jax.eval_shape(init, key), batch).source is plan.source
