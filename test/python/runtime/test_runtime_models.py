"""Real steps through the whole pipeline of passes: three steps give the state that one device gives."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from examples.models import gpt
from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager
from rhino.runtime import PipelineExecutable, build

# Adam's first step is g / (|g| + epsilon): with 1e-8, gradients near 0 turn differences of rounding into steps.
EPSILON = 1e-3


def pipelined(
    step: Callable[..., Any], state: Any, batch: Any, stages: int, microbatches: int, schedule: str, options: str = ""
) -> PipelineExecutable:
    """The step in stages of one device each, the state donated."""
    lowered = jax.jit(step, donate_argnums=0, keep_unused=True).lower(state, batch).compiler_ir("stablehlo")
    context = make_context()
    module = parse_text(str(lowered.operation.get_asm(enable_debug_info=True)), context)
    passes = ["rhino-inline", "symbol-dce", "canonicalize", "rhino-classify-args"]
    passes += [f"rhino-split-microbatch{{count={microbatches}}}"]
    passes += [f"rhino-plan-stages{{stages={stages} topology=dgx-h100:1}}", f"rhino-form-fragments{{{options}}}"]
    passes += [f"rhino-schedule{{schedule={schedule}}}"]
    PassManager.parse(f"builtin.module({','.join(passes)})", context).run(module)
    return build(module)


def check_steps(pipeline: PipelineExecutable, step: Callable[..., Any], state: Any, batches: list[Any]) -> None:
    """Every step gives the metrics, and all of them the state, of the same steps on one device."""
    made = jax.tree.structure(jax.eval_shape(step, state, batches[0]))
    whole = jax.jit(step)
    wanted, found = state, state
    for batch in batches:
        wanted, metrics = whole(wanted, batch)
        found, measured = jax.tree.unflatten(made, pipeline.run(jax.tree.leaves((found, batch))))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), measured, metrics)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=2e-6)


def deep(layers: int = 4, width: int = 16) -> tuple[Any, Callable[..., Any], list[Any]]:
    """A network of equal layers, its loss and Adam."""
    random = np.random.default_rng(0)
    params = [jnp.asarray(random.standard_normal((width, width), np.float32) / width**0.5) for _ in range(layers)]
    optimizer = optax.adam(1e-3, eps=EPSILON)

    def step(state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            h = batch["x"]
            for w in params:
                h = jnp.tanh(h @ w)
            return jnp.mean((h - batch["y"]) ** 2)

        params, moments = state
        value, gradients = jax.value_and_grad(loss)(params)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), {"loss": value, "norm": optax.tree.norm(gradients)}

    def batch() -> dict[str, Any]:
        return {key: random.standard_normal((16, width), np.float32) for key in ("x", "y")}

    return (params, optimizer.init(params)), step, [batch() for _ in range(3)]


@pytest.mark.parametrize(
    ("stages", "schedule", "options"),
    [
        (2, "1f1b", ""),
        (4, "eager-1f1b", ""),
        (4, "interleaved-1f1b", "groups=2"),
        (4, "zero-bubble", "split-backward"),
    ],
)
def test_a_deep_network_with_adam(stages: int, schedule: str, options: str) -> None:
    state, step, batches = deep()
    pipeline = pipelined(step, state, batches[0], stages, 4, schedule, options)
    assert pipeline.program.stages == stages
    assert pipeline.devices == (2 if options == "groups=2" else stages)
    check_steps(pipeline, step, state, batches)


@pytest.mark.long
@pytest.mark.usefixtures("only_new_objects")
def test_gpt_with_tied_embedding_and_clipping() -> None:
    config = dataclasses.replace(gpt.PRESETS["tiny"], width=32, seq_len=16, vocab=64)
    init, step = gpt.make_train_step(config)
    fresh = init(jax.random.key(0))
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3, eps=EPSILON))
    state = fresh.replace(tx=tx, opt_state=tx.init(fresh.params))
    random = np.random.default_rng(0)

    def batch() -> dict[str, Any]:
        return {"tokens": random.integers(0, 64, (8, 17), np.int32), "unread": np.zeros(3, np.float32)}

    batches = [batch() for _ in range(3)]
    pipeline = pipelined(step, state, batches[0], 2, 4, "1f1b")
    # The first stage stands where the state is, and takes its buffers.
    check_steps(pipeline, step, jax.tree.map(jnp.copy, state), batches)
    # Both stages have something to keep, and no step leaves anything behind.
    assert all(group.argument_bytes > 0 for group in pipeline.memory_analysis().groups)
    made = jax.tree.structure(jax.eval_shape(step, state, batches[0]))
    counts = []
    for _ in range(10):
        state, metrics = jax.tree.unflatten(made, pipeline.run(jax.tree.leaves((state, batches[0]))))
        jax.block_until_ready(metrics)
        gc.collect()
        counts.append(len(jax.live_arrays()))
    assert len(set(counts[1:])) == 1, counts
