"""rhino-delay-random on recomputed layers with dropout: the same bits, and less memory where XLA fused them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rhino.compile import Executable, compile_module
from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager

LAYERS = 12


def lowered(batch: int, heads: int, length: int, width: int) -> str:
    """The gradient of layers of attention with dropout under jax.checkpoint, as jax lowers it for GPUs."""

    def layer(h: jax.Array, w: jax.Array, key: jax.Array) -> jax.Array:
        q, k, v = jnp.einsum("btd,dchk->cbhtk", h, w)
        weights = jax.nn.softmax(jnp.einsum("bhtk,bhsk->bhts", q, k))
        weights = jnp.where(jax.random.bernoulli(key, 0.9, weights.shape), weights / 0.9, 0.0)
        return h + jnp.einsum("bhts,bhsk->bthk", weights, v).reshape(h.shape)

    def loss(ws: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        for w, layer_key in zip(ws, jax.random.split(key, LAYERS), strict=True):
            x = jax.checkpoint(layer)(x, w, layer_key)
        return (x**2).mean()

    spec = jax.ShapeDtypeStruct
    weight = spec((width, 3, heads, width // heads), jnp.float32)
    arguments = ([weight] * LAYERS, spec((batch, length, width), jnp.float32), spec((2,), jnp.uint32))
    return jax.jit(jax.value_and_grad(loss)).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def compiled(text: str, target: str, delay: str) -> Executable:
    """The program for one device, its random bits delayed or not."""
    module = parse_text(text, make_context())
    PassManager.parse(f"builtin.module(rhino-inline,symbol-dce,canonicalize{delay})", module.context).run(module)
    assert (str(module).count("optimization_barrier") > text.count("optimization_barrier")) == bool(delay)
    return compile_module(str(module), target)


def test_the_bits_are_the_same() -> None:
    text, random = lowered(2, 2, 8, 8), np.random.default_rng(0)
    ws = [random.normal(size=(8, 3, 2, 4)).astype(np.float32) / 3 for _ in range(LAYERS)]
    arguments = (*ws, random.normal(size=(2, 8, 8)).astype(np.float32), np.array([3, 5], np.uint32))
    want, got = (compiled(text, "cpu", d)(*arguments) for d in ("", ",rhino-delay-random{least=64}"))
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_the_peak_is_lower(gpu_compiler: None) -> None:
    text = lowered(4, 8, 512, 64)
    before, after = (
        compiled(text, "h100", d).memory_analysis().temp_size_in_bytes for d in ("", ",rhino-delay-random")
    )
    assert after < 0.75 * before, (before, after)
