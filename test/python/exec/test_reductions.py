"""Reductions of every kind, and tensors without elements, over devices whose links cost nothing.

Everything is split that can be; results are those of one device. Each test is one program of many cases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import rhino
from rhino.machine import Cluster

LINKS = Cluster.load(Path(__file__).parent / "free_links.yaml")
F32, I32 = np.float32, np.int32


def same(got: Any, want: Any) -> None:
    for (path, out), expected in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        out, expected = np.asarray(out), np.asarray(expected)
        tolerance = 2e-2 if expected.dtype.itemsize == 2 else 1e-4
        np.testing.assert_allclose(
            out.astype(np.float64), expected.astype(np.float64), tolerance, tolerance, err_msg=str(path)
        )


def values(rows: int = 16) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    return random.normal(size=(rows, 8)).astype(F32), random.integers(0, 7, (rows, 8)).astype(I32)


def chosen(a: Any, b: Any) -> Any:
    """The larger of two with its number, as a user writes it."""
    return lax.select(a[0] >= b[0], a[0], b[0]), lax.select(a[0] >= b[0], a[1], b[1])


def merged(a: Any, b: Any) -> Any:
    """Mean, squared deviations and count of two sets (Chan et al. 1979): the results depend on each other."""
    count, apart = a[2] + b[2], b[0] - a[0]
    some = jnp.maximum(count, 1.0)
    return a[0] + apart * b[2] / some, a[1] + b[1] + apart * apart * a[2] * b[2] / some, count


def reductions(x: jax.Array, i: jax.Array) -> dict[str, Any]:
    """All kinds of reducers, from all kinds of starts."""
    y, j, rows = jnp.sin(x), i * 2 + 1, (0,)
    numbers = lax.broadcasted_iota("int32", x.shape, 0)
    ones, zeros = jnp.ones_like(x), jnp.zeros_like(x)
    zero = F32(0)
    return {
        "sum from 1": lax.reduce(y, F32(1), lax.add, (0, 1)),
        "sum from a value": lax.reduce(y, x[0, 0], lax.add, rows),
        "product from 2": lax.reduce(j, I32(2), lax.mul, rows),
        "maximum from a half": lax.reduce(y, F32(0.5), lax.max, rows),
        "or": lax.reduce(j, I32(0), lax.bitwise_or, rows),
        "and": lax.reduce(j, I32(-1), lax.bitwise_and, rows),
        "xor from 5": lax.reduce(j, I32(5), lax.bitwise_xor, rows),
        "xor of booleans": lax.reduce(j > 5, False, lax.bitwise_xor, rows),
        "any, all": (jnp.any(j > 5, 0), jnp.all(j > 0, 0)),
        "log of summed exponentials": lax.reduce(y, F32(-np.inf), jnp.logaddexp, rows),
        "the same from 0": lax.reduce(y, zero, jnp.logaddexp, rows),
        "the same in bfloat16": lax.reduce(y.astype(jnp.bfloat16), jnp.bfloat16(-np.inf), jnp.logaddexp, rows),
        "argmax": jnp.argmax(y, 0),
        "argmax from a start": lax.reduce((y, numbers), (F32(0.9), I32(99)), chosen, rows),
        "two at once": lax.reduce((y, jnp.cos(x)), (F32(1), F32(2)), lambda a, b: (a[0] + b[0], a[1] * b[1]), rows),
        "moments": lax.reduce((y, zeros, ones), (zero, zero, zero), merged, rows),
        "moments so far": lax.reduce((y, zeros, ones), (F32(3), F32(1), F32(4)), merged, rows),
        "product of complex numbers": jnp.abs(jnp.prod(jnp.exp(1j * x), 0)),
        "largest and least of them": (jnp.angle(jnp.max(jnp.exp(1j * x), 0)), jnp.angle(jnp.min(jnp.exp(1j * x), 0))),
    }


def pooled(a: jax.Array) -> jax.Array:
    return (lax.reduce_window(jnp.sin(a), -jnp.inf, lax.max, (3, 3), (1, 1), "SAME") * jnp.arange(8.0)).sum()


def windows(x: jax.Array, i: jax.Array) -> dict[str, Any]:
    """Windows, and updates that are combined."""
    y, hit = jnp.sin(x), (x[:, 0] * 0).astype("int32") + 3
    return {
        "windows from 1": lax.reduce_window(y, F32(1), lax.add, (4, 2), (2, 2), "SAME"),
        "one window from 1": lax.reduce_window(y, F32(1), lax.add, (len(x), 1), (1, 1), "VALID"),
        "one window of logs": lax.reduce_window(y, F32(-np.inf), jnp.logaddexp, (len(x), 1), (1, 1), "VALID"),
        "so far": (jnp.cumsum(y, 0), lax.cumlogsumexp(y, 0)),
        "added to rows": y.at[hit].add(x),
        "multiplied into rows": (i + 3).at[i[:, 0]].multiply(i + 1),
        "largest of rows": y.at[hit].max(x),
        "of segments": jax.ops.segment_sum(i, i[:, 1], 8),
        "pooled backwards": jax.grad(pooled)(x),
    }


@pytest.mark.parametrize("rows", [8, pytest.param(16, marks=pytest.mark.long)])
@pytest.mark.parametrize("mesh", ["8", pytest.param("2x4", marks=pytest.mark.long)])
@pytest.mark.parametrize("program", [reductions, pytest.param(windows, marks=pytest.mark.slow)])
def test_reductions(program: Any, mesh: str, rows: int) -> None:
    """Before: 7 starts too many, or none (a device has one row), "Unsupported reduction", and an abort in bfloat16."""
    given = values(rows)
    step = rhino.parallelize(program, cluster=LINKS, mesh=mesh)
    same(step(*given), jax.jit(program)(*given))
    assert "all-reduce" in {c.kind for c in step.compile(*given).collectives()}


def test_joined_tensors_start_once() -> None:
    """XLA itself starts the sum of each joined tensor where the whole starts: 26 on one device."""

    def step(a: jax.Array) -> Any:
        both = jnp.concatenate([a, a])
        return lax.reduce(both, F32(5), lax.add, (0,)), lax.reduce(both, F32(0), jnp.logaddexp, (0,))

    got = rhino.parallelize(step, cluster=LINKS, mesh="8")(np.ones((8, 8), F32))
    same(got, (np.full(8, 21.0), np.full(8, np.log(1 + 16 * np.exp(1)))))


def test_tensors_without_elements_stay_whole() -> None:
    """Before: `could not broadcast input array from shape (16,0) into shape (2,0)` where the result was read."""

    def step(x: jax.Array, none: jax.Array, state: dict[str, jax.Array]) -> Any:
        loop = lax.fori_loop(0, 3, lambda _, c: (c[0] * 2, c[1] + 1), ((x * 2)[:, :0], x))
        return (
            none * 2,
            jax.vmap(lambda row: row[:0])(x),
            jnp.concatenate([jnp.tanh(none), x]),
            (x.T @ x[:, :0], (x[:, :0].T @ x), (x * 2)[:, :0] @ (x * 3)[:, :0].T, none @ x.T),
            (x[:, :0].sum(1), x[:0].max(0, initial=1.0), x[:, :0].sum(0)),
            x.reshape(16, 8, 1)[:, :, :0] * 2,
            x.at[np.zeros((0,), I32)].add(1.0),
            loop,
            jax.tree.map(lambda a: a + 1, state),
        )

    x, none = values()[0], np.zeros((0, 16), F32)[:, :8]
    state = {"weights": x, "none": np.zeros((16, 0), F32)}
    planned = rhino.parallelize(step, cluster=LINKS, mesh="8", donate_argnums=(2,))
    got = planned(x, none, state)
    for out in jax.tree.leaves(got):
        assert np.asarray(out).shape == out.shape
        assert out.size or out.sharding.is_fully_replicated, out.shape
    same(got, jax.jit(step)(x, none, state))
    again = planned(x, none, got[-1])
    assert np.asarray(again[-1]["none"]).shape == (16, 0)


def _in_a_branch(x: jax.Array) -> Any:
    return lax.cond(x.sum() > 0, lambda a: (a[:, :0], a * 2), lambda a: (a[:, 8:], a), jnp.sin(x))


def _in_a_loop(x: jax.Array) -> Any:
    def body(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return carry[0] * 2, carry[1] + carry[0].sum(1, keepdims=True) + 1

    return lax.while_loop(lambda c: c[1].sum() < 1e4, body, (jnp.sin(x)[:, :0], jnp.sin(x)))


@pytest.mark.parametrize("step", [_in_a_branch, _in_a_loop])
def test_what_a_loop_or_branch_makes_without_elements_stays_whole(step: Any) -> None:
    x = values(16)[0]
    got = rhino.parallelize(step, cluster=LINKS, mesh="8")(x)
    assert got[0].shape == (16, 0)
    assert got[0].sharding.is_fully_replicated
    assert not got[1].sharding.is_fully_replicated
    same(got, jax.jit(step)(x))


def test_a_pipeline_starts_once() -> None:
    """Before: "adds up all examples onto something that is not zero", and no products over the batch."""
    random = np.random.default_rng(0)
    weights = [random.normal(size=(16, 16)).astype(F32) * 0.3 for _ in range(4)]
    x, labels = random.normal(size=(16, 16)).astype(F32), random.integers(0, 4, (16, 8)).astype(I32)
    state = {"weights": weights, "seen": np.arange(4, dtype=I32)}

    def step(state: dict[str, Any], x: jax.Array, labels: jax.Array) -> Any:
        def loss(weights: list[jax.Array]) -> Any:
            h = x
            for w in weights:
                h = jnp.tanh(h @ w) + h
            fixed = lax.stop_gradient(h)
            seen = {
                "sum from a value": lax.reduce(fixed, lax.stop_gradient(weights[0][0, 0]), lax.add, (0, 1)),
                "maximum from 5": lax.reduce(fixed, F32(5), lax.max, (0,)),
                "product": jnp.prod(jnp.abs(fixed[:, 0]) + 0.5),
                "xor": lax.reduce(labels, I32(5), lax.bitwise_xor, (0,)),
            }
            return (h * h).mean(), seen

        (value, seen), gradients = jax.value_and_grad(loss, has_aux=True)(state["weights"])
        stepped = [w - 0.1 * g for w, g in zip(state["weights"], gradients, strict=True)]
        return {"weights": stepped, "seen": state["seen"].at[labels[:, 0]].add(1)}, value, seen

    want = jax.jit(step)(state, x, labels)
    planned = rhino.parallelize(step, cluster=LINKS, stages=2, microbatches=2)
    same(planned(state, x, labels), want)
