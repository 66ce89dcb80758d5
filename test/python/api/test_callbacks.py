"""Callbacks in a step: each sees whole values, as often as under `jax.jit`, in one program and in a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback

import rhino
from rhino.compile import compile_module

RNG = np.random.default_rng(0)
Weights = dict[str, jax.Array]
W = {n: jnp.asarray(0.1 * RNG.standard_normal((16, 16)), jnp.float32) for n in "ab"}
X = jnp.asarray(RNG.standard_normal((8, 16)), jnp.float32)


def value_and_update(loss: Callable[[Weights], jax.Array], w: Weights) -> tuple[jax.Array, Weights, Weights]:
    value, grads = jax.value_and_grad(loss)(w)
    return value, jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), grads


class Seen:
    """What callbacks were called with, by shape and sum."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[int, ...], float]] = []

    def __call__(self, *values: Any) -> None:
        self.calls += [(np.shape(v), round(float(np.sum(v)), 3)) for v in values]

    def take(self) -> list[tuple[tuple[int, ...], float]]:
        jax.effects_barrier()
        taken, self.calls = sorted(self.calls), []
        return taken


@pytest.mark.parametrize("options", [{"mesh": (8,)}, {"stages": 2, "microbatches": 2}], ids=["one program", "pipeline"])
def test_callbacks_see_whole_values_once(options: dict[str, Any]) -> None:
    seen = Seen()

    def step(w: Weights, x: jax.Array) -> tuple[Weights, jax.Array]:
        jax.debug.callback(seen, x, w["a"])  # the batch, and a parameter

        def loss(w: Weights) -> jax.Array:
            h = jnp.tanh(x @ w["a"])
            jax.debug.callback(seen, h)  # activations of all examples
            return ((h @ w["b"]) ** 2).mean()

        value, new, grads = value_and_update(loss, w)
        jax.debug.print("loss {value}", value=value)
        jax.debug.callback(seen, grads["b"])
        jax.lax.cond(jnp.isfinite(value), lambda v: jax.debug.callback(seen, v), lambda v: None, value)
        twice = io_callback(lambda v: 2 * v, jax.ShapeDtypeStruct((), jnp.float32), value)
        return new, twice

    expected = jax.jit(step)(W, X)
    calls = seen.take()
    assert len(calls) == 5
    got = rhino.parallelize(step, cluster="cpu:1", **options)(W, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), b, atol=1e-6), got, expected)
    assert seen.take() == calls


def test_a_callback_whose_result_examples_need_is_refused_in_a_pipeline() -> None:
    def step(w: Weights, x: jax.Array) -> Weights:
        def loss(w: Weights) -> jax.Array:
            h = x @ w["a"]
            target = jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return ((h @ w["b"] - target) ** 2).mean()

        return value_and_update(loss, w)[1]

    with pytest.raises(rhino.RhinoError, match=r"test_callbacks.py:\d+.*what a callback returns that sees all of them"):
        rhino.parallelize(step, cluster="cpu:1", stages=2, microbatches=2).plan(W, X)
    # The remedy: without stages.
    got = rhino.parallelize(step, cluster="cpu:1", stages=1)(W, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, jax.jit(step)(W, X))


def test_a_callback_in_a_loop_over_examples_is_refused_in_a_pipeline() -> None:
    def step(w: Weights, x: jax.Array) -> Weights:
        def body(h: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
            jax.debug.callback(lambda v: None, layer[0, 0])
            return jnp.tanh(h @ layer), None

        layers = jnp.stack([w["a"], w["b"]])
        return value_and_update(lambda w: (jax.lax.scan(body, x @ w["a"], layers)[0] ** 2).mean(), w)[1]

    with pytest.raises(rhino.RhinoError, match=r"test_callbacks.py:\d+.*would run once per micro-batch"):
        rhino.parallelize(step, cluster="cpu:1", stages=2, microbatches=2).plan(W, X)


def _printed(x: jax.Array, ordered: bool) -> jax.Array:
    jax.debug.print("{x}", x=x.sum(), ordered=ordered)
    return 2 * x


def _asked(x: jax.Array, ordered: bool) -> jax.Array:
    twice = io_callback(lambda v: 2 * v, jax.ShapeDtypeStruct((), jnp.float32), x.sum(), ordered=ordered)
    return x * twice


def _in_a_scan(x: jax.Array, ordered: bool) -> jax.Array:
    def body(h: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        jax.debug.callback(lambda i: None, i, ordered=ordered)
        return h + i, None

    return jax.lax.scan(body, x, jnp.arange(2.0))[0]


@pytest.mark.parametrize("step", [_printed, _asked, _in_a_scan])
def test_ordered_callbacks_are_refused_where_they_are(step: Callable[[jax.Array, bool], jax.Array]) -> None:
    for options in ({}, {"stages": 2}):
        with pytest.raises(rhino.RhinoError, match=r"test_callbacks.py:\d+:\d+: an ordered callback .* ordered=False"):
            rhino.parallelize(lambda x: step(x, True), cluster="cpu:1", **options).plan(X)
    # The remedy.
    got = rhino.parallelize(lambda x: step(x, False), cluster="cpu:1")(X)
    np.testing.assert_allclose(got, step(X, False), rtol=1e-6)


@pytest.mark.parametrize("options", [{"mesh": (8,)}, {"stages": 2, "microbatches": 2}], ids=["one program", "pipeline"])
def test_checkify_finds_what_it_finds_under_jit(options: dict[str, Any]) -> None:
    def step(w: Weights, x: jax.Array) -> Any:
        checkify.check(jnp.all(x < 9), "too large: {x}", x=x.max())
        loss, new, _ = value_and_update(lambda w: jnp.log(jnp.tanh(x @ w["a"]) @ w["b"] + 2).mean(), w)
        return new, loss

    checked = checkify.checkify(step, errors=checkify.float_checks | checkify.user_checks)
    parallel = rhino.parallelize(checked, cluster="cpu:1", **options)
    for x in (X, X + 10, X * jnp.nan):
        (error, ours), (wanted, theirs) = parallel(W, x), jax.jit(checked)(W, x)
        assert error.get() == wanted.get()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)
    assert parallel(W, X)[0].get() is None


def test_a_file_with_a_callback_is_not_compiled() -> None:
    def step(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v: None, x.sum())
        return 2 * x

    text = jax.jit(step).lower(X).as_text()
    # The function is in the process that wrote the file: to call it ends the process.
    with pytest.raises(rhino.RhinoError, match="calls a Python function of the process that exported it"):
        compile_module(text)
