"""Remedies that change the step: what refusals of callbacks, in pipelines and of ordered ones, tell users to write."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import rhino
from zoo import harness
from zoo.common import classes, mlp_loss, mlp_params
from zoo.steps import callbacks, debug_print

pytestmark = pytest.mark.slow


def same(step: Any, *given: Any, plain: Any = None) -> None:
    """The step in two stages and two micro-batches gives what `plain`, or itself, gives on one device."""
    planned = rhino.parallelize(step, cluster=str(harness.CLUSTER), stages=2, microbatches=2)
    got, want = planned(*given), jax.jit(plain or step)(*given[: 2 if plain else None])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-5)


def test_a_function_is_called_before_the_step_and_what_it_returns_is_passed() -> None:
    case = callbacks.case()
    (params,), (x,) = case.state, case.batches[0]

    def step(params: Any, x: jax.Array, ranked: Any) -> Any:
        def loss_fn(p: Any) -> jax.Array:
            return ((jnp.tanh(x @ p["a"]) @ p["b"] - ranked) ** 2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    same(step, params, x, callbacks.on_host(x), plain=case.step)


def test_a_loop_returns_what_a_callback_reads() -> None:
    case = debug_print.case()
    (w,), (x,) = case.state, case.batches[0]
    seen: list[np.ndarray] = []

    def step(w: jax.Array, x: jax.Array) -> Any:
        def layer(h: jax.Array, w: jax.Array) -> Any:
            h = jnp.tanh(h @ w)
            return h, h.mean()

        def loss_fn(w: jax.Array) -> Any:
            h, means = jax.lax.scan(layer, x, w)
            return (h**2).mean(), means

        (loss, means), g = jax.value_and_grad(loss_fn, has_aux=True)(w)
        jax.debug.callback(lambda m: seen.append(np.asarray(m)), means)
        return w - 0.1 * g, loss

    same(step, w, x)
    jax.effects_barrier()
    planned, plain = seen
    np.testing.assert_allclose(planned, plain, rtol=1e-5, atol=1e-7)  # means of values up to 1 that nearly cancel


def test_a_callback_without_an_order() -> None:
    seen: list[Any] = []

    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(mlp_loss)(params, x, y)
        io_callback(seen.append, None, loss, ordered=False)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    same(step, mlp_params(), *classes(1)[0])
    jax.effects_barrier()
    assert len(seen) == 2
