"""Plain JAX: a GPT whose layers are stacked and scanned with a remat policy, bf16 computing over f32 parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "GPT: scan over layers, remat policy, bf16 activations")
WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 4, 64


def init(key: jax.Array) -> dict[str, Any]:
    a, b, c, d, e = jax.random.split(key, 5)
    normal = jax.random.normal
    return {
        "wte": normal(a, (VOCABULARY, WIDTH)) * 0.1,
        "layers": {
            "qkv": normal(b, (LAYERS, WIDTH, 3 * WIDTH)) * 0.1,
            "out": normal(c, (LAYERS, WIDTH, WIDTH)) * 0.1,
            "up": normal(d, (LAYERS, WIDTH, 4 * WIDTH)) * 0.1,
            "down": normal(e, (LAYERS, 4 * WIDTH, WIDTH)) * 0.1,
            "g1": jnp.ones((LAYERS, WIDTH)), "g2": jnp.ones((LAYERS, WIDTH)),
        },
    }  # fmt: skip


def norm(x: jax.Array, g: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * g).astype(x.dtype)


def layer(x: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    b, s, _ = x.shape
    q, k, v = jnp.split(norm(x, p["g1"]) @ p["qkv"].astype(x.dtype), 3, axis=-1)
    q, k, v = (t.reshape(b, s, HEADS, -1) for t in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
    y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v).reshape(b, s, -1)
    x = x + y @ p["out"].astype(x.dtype)
    return x + jax.nn.gelu(norm(x, p["g2"]) @ p["up"].astype(x.dtype)) @ p["down"].astype(x.dtype), None


def case() -> Case:
    tx = optax.adamw(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, tokens: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            x = params["wte"][tokens[:, :-1]].astype(jnp.bfloat16)
            policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            x, _ = jax.lax.scan(jax.checkpoint(layer, policy=policy), x, params["layers"])
            logits = x.astype(jnp.float32) @ params["wte"].T
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, {"loss": loss}

    params = init(jax.random.key(0))
    batches = [(jax.random.randint(jax.random.key(i), (8, 17), 0, VOCABULARY),) for i in range(2)]
    return Case(
        step, (params, tx.init(params)), batches, donate=(0, 1), rtol=0.1, atol=2e-2
    )  # Adam divides noise of bfloat16 by itself
