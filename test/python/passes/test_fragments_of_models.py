"""Real training steps through all passes of a pipeline: their fragments give what the plain step gives.

XLA runs both, each fragment by itself; after one step parameters, optimizer state and metrics are compared.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from fragment_interpreter import run_fragments
from jaxlib.mlir import ir

from examples.export import lower
from rhino.compile import Executable, compile_module
from rhino.dialect.context import make_context, parse_text
from rhino.ir.pipeline.program import read_program
from rhino.passes.pass_manager import PassManager

NORMALISE = "rhino-inline,symbol-dce,canonicalize,rhino-classify-args"
# Compiling takes nearly all the time of these tests.
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def step_of(name: str, batch: int, **changes: Any) -> tuple[str, list[np.ndarray]]:
    """A small model's step as jax lowers it, and its arguments.

    What starts at zero is given values: where a gradient is zero but for rounding, the first steps of Adam would be
    made of the rounding.
    """
    model = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(model.PRESETS["tiny"], **changes)
    init_fn, train_step = model.make_train_step(config)
    state = jax.jit(init_fn)(jax.random.key(0, impl="unsafe_rbg"))
    inputs = model.example_batch(config, batch)
    module = lower(train_step, state, inputs)
    rng = np.random.default_rng(0)

    def given(leaf: Any) -> np.ndarray:
        array = np.asarray(
            jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )
        started = array.any() or not np.issubdtype(array.dtype, np.floating)
        return array if started else rng.uniform(0.01, 0.02, array.shape).astype(array.dtype)

    return str(module), [given(leaf) for leaf in jax.tree.leaves((state, inputs))]


def evaluator() -> Any:
    @cache
    def compiled(text: str) -> Executable:
        return compile_module(text, "cpu", options=FAST)

    def run(text: str, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(out) for out in compiled(text)(*given)]

    return run


def through(text: str, context: ir.Context, *passes: str) -> ir.Module:
    module = parse_text(text, context)
    PassManager.parse(f"builtin.module({','.join([NORMALISE, *passes])})", context).run(module)
    return module


CASES = [
    pytest.param("gpt", {"layers": 2, "scan": False, "tied": True}, 2, "", id="gpt tied"),
    pytest.param("gpt", {"layers": 4, "scan": True}, 2, "split-backward", id="gpt scanned", marks=pytest.mark.long),
    pytest.param("gpt", {"layers": 4, "scan": False}, 4, "groups=2", id="gpt interleaved", marks=pytest.mark.long),
    pytest.param("t5", {"scan": False}, 3, "split-backward", id="t5", marks=pytest.mark.long),
    pytest.param("unet", {}, 3, "", id="unet", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "changes", "stages", "options"), CASES)
def test_fragments_of_a_model_give_what_it_gives(name: str, changes: Any, stages: int, options: str) -> None:
    text, arguments = step_of(name, 4, **changes)
    context = make_context()
    passes = ["rhino-split-scans{count=2}"] if changes.get("scan") else []
    passes += ["rhino-split-microbatch{count=2}", f"rhino-plan-stages{{stages={stages} topology=dgx-h100:1}}"]
    staged = through(text, context, *passes)
    module = through(text, context, *passes, f"rhino-form-fragments{{{options}}}")
    program = read_program(module)
    assert {f.stage for f in program.fragments if f.kind == "forward"} == set(range(stages))
    run = evaluator()
    want, got = run(str(staged), arguments), run_fragments(module, arguments, run)
    assert len(got) == len(want)
    for left, right in zip(got, want, strict=True):
        assert np.isfinite(np.asarray(right, np.float32)).all()
        scale = float(np.abs(right).max()) if right.size else 0.0
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6 * scale)
