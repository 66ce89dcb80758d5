"""Llama's block: rotary positions, grouped queries by `jax.nn.dot_product_attention`, SwiGLU, a sliding window."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "Llama: rotary, jax.nn.dot_product_attention with grouped queries and a window, SwiGLU")
WIDTH, HEADS, GROUPS, SIZE, MLP, VOCABULARY, LAYERS = 32, 4, 2, 8, 64, 64, 2
TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, b2=0.95, eps=1e-4))


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def rotate(x: jax.Array) -> jax.Array:
    angles = jnp.arange(x.shape[1])[:, None] * 1e4 ** -(jnp.arange(0, SIZE, 2) / SIZE)
    pairs = jax.lax.complex(x[..., ::2], x[..., 1::2]) * jnp.exp(1j * angles)[:, None]
    return jnp.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def block(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    b, s, _ = x.shape
    h = norm(x, p["g1"])
    q, k, v = ((h @ p[n]).reshape(b, s, -1, SIZE) for n in ("wq", "wk", "wv"))
    y = jax.nn.dot_product_attention(rotate(q), rotate(k), v, is_causal=True, local_window_size=(6, 0))
    x = x + y.reshape(b, s, -1) @ p["wo"]
    h = norm(x, p["g2"])
    return x + (jax.nn.silu(h @ p["w1"]) * (h @ p["w3"])) @ p["w2"]


def step(params: dict[str, Any], opt_state: Any, tokens: jax.Array) -> Any:
    def loss_fn(p: dict[str, Any]) -> jax.Array:
        x = p["tok_embeddings"][tokens[:, :-1]]
        for layer in p["layers"]:
            x = block(layer, x)
        logits = norm(x, p["norm"]) @ p["output"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def case() -> Case:
    keys = iter(jax.random.split(jax.random.key(0), 32))

    def normal(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    def layer() -> dict[str, jax.Array]:
        return {
            "wq": normal(WIDTH, HEADS * SIZE), "wk": normal(WIDTH, GROUPS * SIZE), "wv": normal(WIDTH, GROUPS * SIZE),
            "wo": normal(HEADS * SIZE, WIDTH), "w1": normal(WIDTH, MLP), "w3": normal(WIDTH, MLP),
            "w2": normal(MLP, WIDTH), "g1": jnp.ones(WIDTH), "g2": jnp.ones(WIDTH),
        }  # fmt: skip

    params = {
        "tok_embeddings": normal(VOCABULARY, WIDTH), "layers": [layer() for _ in range(LAYERS)],
        "norm": jnp.ones(WIDTH), "output": normal(WIDTH, VOCABULARY),
    }  # fmt: skip
    batches = [(jax.random.randint(jax.random.key(i), (8, 17), 0, VOCABULARY),) for i in range(2)]
    return Case(step, (params, TX.init(params)), batches, donate=(0, 1), rtol=1e-3)
