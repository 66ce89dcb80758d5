"""Fragments that are one program are compiled once, and run on the devices of each group."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bench._pipeline_model import Chain, arguments, build, whole_step
from rhino.pipeline.schedule import PipelineCosts, make_schedule
from rhino.runtime import build_program


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_stages_of_one_program_share_an_executable(groups: int) -> None:
    chain = Chain(4, groups, 4, layers=2, rows=4, width=8)
    program, modules = build(chain)
    name = "1f1b" if groups == 4 else "interleaved-1f1b"
    schedule = make_schedule(name, PipelineCosts.uniform(4, 1.0, 3.0, groups=groups), 4)
    pipeline = build_program(program, schedule, modules)
    assert len(program.fragments) == 16
    # The first and the last stage differ from those between, but for the forward of the last and the updates.
    assert len(set(pipeline.compiled.programs)) == 8
    *params, loss = pipeline.run(arguments(chain))
    wanted, wanted_loss = jax.jit(whole_step(chain))(*arguments(chain))
    for found, expected in zip(params, wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, wanted_loss, rtol=1e-5)
    assert [p.devices() for p in params] == [{jax.devices()[s % groups]} for s in range(4)]


def test_an_executable_is_loaded_on_other_devices() -> None:
    from rhino.compile import compile_module

    text = jax.jit(lambda x: jax.numpy.tanh(x) @ x).lower(jax.ShapeDtypeStruct((8, 8), "float32")).as_text()
    first = compile_module(text)
    there = first.on(jax.devices()[3:4])
    assert there.memory_analysis() == first.memory_analysis()
    x = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    (here,), (moved,) = first(x), there(x)
    assert moved.devices() == {jax.devices()[3]}
    np.testing.assert_array_equal(np.asarray(here), np.asarray(moved))
