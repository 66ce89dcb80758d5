"""Decoding with a KV cache: one token per call, the cache updated by `dynamic_update_slice`, tokens sampled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.harness import About, Case

ABOUT = About("JAX", "decode with a KV cache, sampled tokens", ci=("one",))
WIDTH, HEADS, LENGTH, VOCABULARY, LAYERS = 32, 4, 16, 64, 2


def step(cache: dict[str, Any], params: dict[str, Any], tokens: jax.Array, key: jax.Array) -> Any:
    position = cache["position"]
    x = params["wte"][tokens]
    keys, values = [], []
    for i, p in enumerate(params["layers"]):
        q, k, v = (t.reshape(-1, HEADS, WIDTH // HEADS) for t in jnp.split(x @ p["qkv"], 3, axis=-1))
        ks = jax.lax.dynamic_update_slice(cache["k"][i], k[:, None], (0, position, 0, 0))
        vs = jax.lax.dynamic_update_slice(cache["v"][i], v[:, None], (0, position, 0, 0))
        scores = jnp.einsum("bhd,bshd->bhs", q, ks) / (WIDTH // HEADS) ** 0.5
        scores = jnp.where(jnp.arange(LENGTH) <= position, scores, -jnp.inf)
        x = x + jnp.einsum("bhs,bshd->bhd", jax.nn.softmax(scores), vs).reshape(x.shape) @ p["out"]
        keys.append(ks)
        values.append(vs)
    logits = x @ params["wte"].T
    token = jax.random.categorical(key, logits / 0.8)
    return {"k": keys, "v": values, "position": position + 1}, token, logits


def case() -> Case:
    k = jax.random.split(jax.random.key(0), 2 * LAYERS + 1)
    params = {
        "wte": jax.random.normal(k[0], (VOCABULARY, WIDTH)) * 0.3,
        "layers": [
            {"qkv": jax.random.normal(k[2 * i + 1], (WIDTH, 3 * WIDTH)) * 0.2,
             "out": jax.random.normal(k[2 * i + 2], (WIDTH, WIDTH)) * 0.2}
            for i in range(LAYERS)
        ],
    }  # fmt: skip
    empty = [jnp.zeros((8, LENGTH, HEADS, WIDTH // HEADS)) for _ in range(LAYERS)]
    cache = {"k": empty, "v": empty, "position": jnp.int32(0)}
    batches = [
        (params, jax.random.randint(jax.random.key(i), (8,), 0, VOCABULARY), jax.random.key(i)) for i in range(3)
    ]
    return Case(step, (cache,), batches, donate=(0,))
