"""Random small programs: the loop over micro-batches computes what the whole batch does, by StableHLO's interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PipelineError

F32 = jnp.float32


def interpreted(text: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The results by StableHLO's reference interpreter."""
    module = parse_text(text, make_context())
    with module.context:
        shaped = [ir.DenseElementsAttr.get(a) for a in arguments]
        return [np.array(out) for out in stablehlo.eval_module(module, shaped)]


def check(
    function: Callable[..., Any],
    arguments: list[Any],
    counts: tuple[int, ...],
    evaluate: Callable[[str, list[np.ndarray]], list[np.ndarray]] = interpreted,
) -> None:
    """Whole and split agree, by the interpreter."""
    text = steps.text_of(steps.lowered(function, *arguments), "func.func(chlo-legalize-to-stablehlo)")
    flat = [np.asarray(a) for a in jax.tree.leaves(arguments)]
    want = evaluate(text, flat)
    for count in counts:
        steps.agree(evaluate(steps.split(text, count), flat), want)
        if count == 1:
            continue
        try:
            local = steps.split(text, count, 2)
        except PipelineError as refused:
            assert "can be 2 local sums" in str(refused)
        else:
            steps.agree(evaluate(local, flat), want)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    positions=st.integers(1, 3),
    merged=st.booleans(),
    tied=st.booleans(),
    masked=st.booleans(),
    drop=st.booleans(),
)
def test_networks(widths: list[int], positions: int, merged: bool, tied: bool, masked: bool, drop: bool) -> None:
    """Dense layers on examples or on all their positions, with tied weights, masks and dropout."""
    random = np.random.default_rng(len(widths))
    if tied:
        widths = [widths[0]] * len(widths)
    params = [random.normal(size=pair).astype(np.float32) for pair in itertools.pairwise(widths)]
    x = random.normal(size=(8, positions, widths[0])).astype(np.float32)
    keep = (random.uniform(size=(8, positions)) < 0.7).astype(np.float32)
    keep[0, 0] = 1

    def loss(params: list[Any], x: Any, keep: Any) -> Any:
        h = x.reshape(8 * positions, -1) if merged else x
        for i, w in enumerate(params):
            h = jnp.tanh(h @ (params[0] if tied else w))
            if drop:
                h = jnp.where(jax.random.bernoulli(jax.random.key(i), 0.8, h.shape), h, 0)
        each = (h.reshape(8, positions, -1) ** 2).sum(-1)
        return (each * keep).sum() / keep.sum() if masked else each.mean()

    def step(params: list[Any], x: Any, keep: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, keep)
        norm = jnp.sqrt(sum((g**2).sum() for g in gradients))
        return [p - g / (1 + norm) for p, g in zip(params, gradients, strict=True)], value

    check(step, [params, x, keep], (2, 4))


def scanned(ws: Any, x: Any) -> Any:
    """A scan over layers, with a carried sum and per-layer outputs."""

    def layer(carry: Any, w: Any) -> Any:
        h, total = carry
        h = jnp.tanh(h @ w)
        return (h, total + (h**2).sum()), h.mean(0)

    def loss(ws: Any) -> Any:
        (h, total), means = jax.lax.scan(layer, (x, jnp.float32(0)), ws)
        return (h**2).mean() + 0.1 * total + means.sum()

    return jax.value_and_grad(loss)(ws)


def remat(ws: Any, x: Any) -> Any:
    """Recomputed layers, one after the other: barriers hold parameters and activations."""

    @jax.checkpoint
    def layer(h: Any, w: Any) -> Any:
        return jnp.sin(h @ w)

    def loss(ws: Any) -> Any:
        h = x
        for i in range(3):
            h = layer(h, ws[i])
        return (h**2).mean()

    return jax.value_and_grad(loss)(ws)


def branches(ws: Any, x: Any) -> Any:
    """A branch on a parameter, in a layer."""

    def loss(ws: Any) -> Any:
        h = jax.lax.cond(ws[0, 0, 0] > 0, lambda h: h @ ws[0], lambda h: jnp.tanh(h), x)
        return (h**2).sum()

    return jax.value_and_grad(loss)(ws)


def extremes(ws: Any, x: Any) -> Any:
    """The largest and smallest activation, how many are positive, whether all are finite; examples one by one."""
    h = x @ ws[0]
    return h.max(), h.min(0), (h > 0).sum(), jnp.isfinite(h).all(), (h > 3).any(), h[:, 1:].sum(1), jnp.argmax(h, -1)


def positions(ws: Any, x: Any) -> Any:
    """Numbers of examples, alone and with other dimensions merged."""
    n = jnp.arange(8 * 3, dtype=F32).reshape(8, 3)
    m = jnp.arange(3 * 8, dtype=jnp.int32).reshape(3, 8)
    flat = (x @ ws[0]).reshape(24) * jnp.arange(24)
    return (n * x).sum(0), (m.T * x).sum(), flat.sum(), x * jnp.flip(n, 1)


def windows(ws: Any, x: Any) -> Any:
    """Running sums, sorts, pads and rolls within examples."""
    h = jnp.cumsum(x, 1) + jnp.sort(x, 1) + jnp.roll(x, 1, 1) + jnp.pad(x, ((0, 0), (1, 0)))[:, :3]
    return jax.grad(lambda ws: (jnp.cumsum(h @ ws[0], 1) ** 2).sum())(ws), jax.lax.top_k(h, 2)[0]


def tables(ws: Any, x: Any) -> Any:
    """Rows looked up, and gradients added to the table."""
    ids = jnp.abs(x * 10).astype(jnp.int32) % 9

    def loss(table: Any) -> Any:
        picked = jnp.take_along_axis(table[ids].sum(-1), ids[:, :1] % 3, 1)
        return (picked**2).sum() + (table[ids] ** 2).mean()

    return jax.value_and_grad(loss)(ws.reshape(9, 3))


def views(ws: Any, x: Any) -> Any:
    """Two views of the batch and a fixed one through the net at once, then apart again; of some only a part is used."""
    third = jnp.arange(24, dtype=F32).reshape(8, 3)

    def loss(ws: Any) -> Any:
        h = jnp.tanh(jnp.concatenate([x, third, 2 * x]) @ ws[0])
        one, two = h[:8], h[8:]
        pairs = jnp.split(jnp.pad(two @ ws[1], ((8, 0), (0, 0))) + h, 3)
        return ((one - pairs[2]) ** 2).mean() + (pairs[1] ** 2).sum() + h.reshape(3, 8, 3).std(0).sum()

    return jax.value_and_grad(loss)(ws), jnp.concatenate([x, x @ ws[2]])


@pytest.mark.parametrize("function", [scanned, remat, branches, extremes, positions, windows, tables, views])
def test_constructs(function: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    ws, x = random.normal(size=(3, 3, 3)).astype(np.float32), random.normal(size=(8, 3)).astype(np.float32)

    def step(p: Any, x: Any) -> Any:
        return function(p, x)

    # The interpreter scatters into its operand in place, here zeros that every micro-batch reads from outside its loop.
    evaluate = steps.run if function is tables else interpreted
    check(step, [ws, x], (1, 2, 4, 8), evaluate)
