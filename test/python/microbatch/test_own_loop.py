"""Steps with a loop over micro-batches of their own, as pipelines: its trips are the pipeline's micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import rhino

N, BATCH, WIDTH = 4, 16, 16
RNG = np.random.default_rng(0)
Tree = Any
W = {n: jnp.asarray(0.3 * RNG.standard_normal((WIDTH, WIDTH)), jnp.float32) for n in "abcd"}
X, Y = (jnp.asarray(RNG.standard_normal((BATCH, WIDTH)), jnp.float32) for _ in range(2))
OPTIMIZER = optax.sgd(1e-2)
ZERO = jax.tree.map(jnp.zeros_like, W)


def model(w: Tree, x: jax.Array) -> jax.Array:
    h = x + jnp.tanh(x @ w["a"]) @ w["b"]
    return h + jnp.tanh(h @ w["c"]) @ w["d"]


def loss(w: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return ((model(w, x) - y) ** 2).mean()


def cut(*given: jax.Array) -> tuple[jax.Array, ...]:
    return tuple(v.reshape(N, -1, *v.shape[1:]) for v in given)


def update(w: Tree, state: Tree, grads: Tree, *more: Any) -> tuple[Any, ...]:
    updates, state = OPTIMIZER.update(jax.tree.map(lambda g: g / N, grads), state, w)
    return optax.apply_updates(w, updates), state, *more


def scan_rows(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    """Losses as rows, clipped gradients."""

    def body(total: Tree, part: Any) -> tuple[Tree, jax.Array]:
        value, grads = jax.value_and_grad(loss)(w, *part)
        return jax.tree.map(jnp.add, total, grads), value

    grads, losses = lax.scan(body, ZERO, cut(x, y))
    norm = optax.global_norm(grads)
    return update(w, s, jax.tree.map(lambda g: g / (1 + norm), grads), losses.mean())


def scan_keys(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    """A mean that is carried, a key that is split in every trip, a maximum, predictions, bfloat16 compute."""

    def noisy(w: Tree, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        half = jax.tree.map(lambda v: v.astype(jnp.bfloat16), w)
        kept = jax.random.bernoulli(key, 0.9, x.shape)
        made = model(half, (x * kept).astype(jnp.bfloat16)).astype(jnp.float32)
        return ((made - y) ** 2).mean(), made

    def body(carry: Any, part: Any) -> tuple[Any, jax.Array]:
        total, mean, most, key = carry
        key, now = jax.random.split(key)
        (value, made), grads = jax.value_and_grad(noisy, has_aux=True)(w, *part, now)
        carry = jax.tree.map(jnp.add, total, grads), mean + value / N, jnp.maximum(most, made.max()), key
        return carry, made

    start = ZERO, jnp.float32(0), jnp.float32(-jnp.inf), jax.random.PRNGKey(3)
    (grads, mean, most, key), made = lax.scan(body, start, cut(x, y))
    return update(w, s, grads, mean, most, key, made.reshape(x.shape))


def fori_runs(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    """A fori_loop over runs of examples, with a loss among the examples of each."""

    def contrastive(w: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return -jnp.diag(jax.nn.log_softmax(model(w, x) @ y.T)).mean()

    def body(i: jax.Array, carry: Any) -> Any:
        size = x.shape[0] // N
        part = [lax.dynamic_slice_in_dim(v, i * size, size) for v in (x, y)]
        value, grads = jax.value_and_grad(contrastive)(w, *part)
        return jax.tree.map(jnp.add, carry, (grads, value))

    grads, value = lax.fori_loop(0, N, body, (ZERO, jnp.float32(1)))
    return update(w, s, grads, value)


def fold_in(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    """Keys made of the number of the trip; the batch is given in parts."""

    def noisy(w: Tree, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
        return loss(w, x * jax.random.bernoulli(key, 0.9, x.shape), y)

    def body(total: Tree, part: Any) -> tuple[Tree, jax.Array]:
        i, *examples = part
        key = jax.random.fold_in(jax.random.PRNGKey(0), i)
        value, grads = jax.value_and_grad(noisy)(w, *examples, key)
        return jax.tree.map(jnp.add, total, grads), value

    grads, losses = lax.scan(body, ZERO, (jnp.arange(N), x, y))
    return update(w, s, grads, losses)


def scan_statistics(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    """BatchNorm over each part, whose running means go from trip to trip."""

    def normalised(w: Tree, means: Tree, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Tree]:
        made = {}
        for n in "abcd":
            h = x @ w[n]
            made[n] = 0.9 * means[n] + 0.1 * h.mean(0)
            x = jnp.tanh(h - h.mean(0))
        return ((x - y) ** 2).mean(), made

    def body(carry: Any, part: Any) -> tuple[Any, jax.Array]:
        total, means = carry
        (value, means), grads = jax.value_and_grad(normalised, has_aux=True)(w, means, *part)
        return (jax.tree.map(jnp.add, total, grads), means), value

    (grads, means), losses = lax.scan(body, (ZERO, s[1]), cut(x, y))
    w, state, losses = update(w, s[0], grads, losses)
    return w, (state, means), losses


@pytest.mark.parametrize(
    ("step", "stages"),
    [
        (scan_keys, 2),
        (scan_statistics, 2),
        pytest.param(fori_runs, 2, marks=pytest.mark.long),
        pytest.param(scan_rows, 4, marks=pytest.mark.long),
        pytest.param(fold_in, 2, marks=pytest.mark.long),
    ],
)
def test_a_pipeline_takes_the_steps_own_loop(step: Callable[..., Any], stages: int) -> None:
    state = OPTIMIZER.init(W)
    if step is scan_statistics:
        state = state, {n: jnp.ones(WIDTH) for n in W}
    given = (W, state, *(cut(X, Y) if step is fold_in else (X, Y)))
    parallel = rhino.parallelize(step, cluster="cpu:1", stages=stages)
    plan = parallel.plan(*given)
    assert plan.stages == stages and plan.microbatches in (1, 2, N)
    ours, theirs = given, given
    for _ in range(2):
        got, expected = parallel(*ours), jax.jit(step)(*theirs)
        ours, theirs = (*got[:2], *given[2:]), (*expected[:2], *given[2:])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a), b, rtol=2e-3, atol=2e-5), got, expected)


def training_loop(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    def body(carry: Any, part: Any) -> tuple[Any, jax.Array]:
        value, grads = jax.value_and_grad(loss)(carry[0], *part)
        return update(*carry, grads), value

    (w, s), losses = lax.scan(body, (w, s), cut(x, y))
    return w, s, losses


def test_a_loop_of_several_updates_is_refused_where_it_is() -> None:
    step = rhino.parallelize(training_loop, cluster="cpu:1", stages=2, microbatches=2)
    with pytest.raises(
        rhino.RhinoError,
        match=r"test_own_loop.py:\d+.*is not a sum over the parts, nor a running mean.*leave the loop to",
    ):
        step.plan(W, OPTIMIZER.init(W), X, Y)


def test_other_numbers_of_micro_batches_are_refused() -> None:
    step = rhino.parallelize(scan_rows, cluster="cpu:1", stages=2, microbatches=3)
    with pytest.raises(rhino.RhinoError, match="micro-batches"):
        step.plan(W, OPTIMIZER.init(W), X, Y)


def test_a_loop_written_out_in_python_is_refused_with_what_to_do() -> None:
    def step(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        parts = [jax.value_and_grad(loss)(w, *part) for part in zip(*cut(x, y), strict=True)]
        value, grads = jax.tree.map(lambda *v: sum(v), *parts)
        return update(w, s, grads, value)

    with pytest.raises(rhino.RhinoError, match=r"test_own_loop.py:\d+.*write it as one lax.scan"):
        rhino.parallelize(step, cluster="cpu:1", stages=2, microbatches=2).plan(W, OPTIMIZER.init(W), X, Y)


def gradient_of_scan(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    def total(w: Tree) -> jax.Array:
        return lax.scan(lambda value, part: (value + loss(w, *part), None), jnp.float32(0), cut(x, y))[0]

    value, grads = jax.value_and_grad(total)(w)
    return update(w, s, grads, value)


def unrolled(w: Tree, s: Tree, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
    value, grads = jnp.float32(0), ZERO
    for part in zip(*cut(x, y), strict=True):
        value, grads = jax.tree.map(jnp.add, (value, grads), jax.value_and_grad(loss)(w, *part))
    return update(w, s, grads, value)


@pytest.mark.parametrize("step", [gradient_of_scan, unrolled])
def test_other_loops_over_parts_are_refused_with_what_helps(step: Callable[..., Any]) -> None:
    """The remedies are a scan that adds up gradients, tried above, and no loop: both train in micro-batches."""
    given = W, OPTIMIZER.init(W), X, Y
    message = (
        r"test_own_loop.py:\d+.*all examples at once.*write it as one lax.scan over all of them that adds up gradients"
    )
    with pytest.raises(rhino.RhinoError, match=message):
        rhino.parallelize(step, cluster="cpu:1", stages=2, microbatches=N).plan(*given)
    if step is gradient_of_scan:  # not even one micro-batch has two stages: it is two loops
        with pytest.raises(rhino.RhinoError, match=message + r".*\(stages=1\)"):
            rhino.parallelize(step, cluster="cpu:1", stages=2).plan(*given)
    whole = rhino.parallelize(
        lambda w, s, x, y: update(w, s, jax.grad(loss)(w, x, y)), cluster="cpu:1", stages=2, microbatches=N
    )
    assert whole.plan(*given).microbatches == N
