"""GPT-2 with its vocabulary of 50257, which nothing but 29 and 1733 divides: tied embedding, dropout, AdamW."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from zoo.harness import About, Case

ABOUT = About("Linen", "GPT-2, vocabulary 50257: tied embedding, dropout, AdamW with a schedule")
VOCABULARY, WIDTH, HEADS, LENGTH = 50257, 16, 2, 8


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.LayerNorm(epsilon=1e-5, name="ln_1")(x)
        q, k, v = jnp.split(nn.Dense(3 * WIDTH, name="c_attn")(h), 3, axis=-1)
        q, k, v = (t.reshape(*t.shape[:2], HEADS, -1) for t in (q, k, v))
        y = nn.dot_product_attention(q, k, v, mask=nn.make_causal_mask(x[..., 0])).reshape(x.shape)
        x = x + nn.Dropout(0.1, deterministic=False)(nn.Dense(WIDTH, name="c_proj")(y))
        h = nn.gelu(nn.Dense(4 * WIDTH, name="c_fc")(nn.LayerNorm(epsilon=1e-5, name="ln_2")(x)))
        return x + nn.Dropout(0.1, deterministic=False)(nn.Dense(WIDTH, name="c_out")(h))


class GPT2(nn.Module):
    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        wte = nn.Embed(VOCABULARY, WIDTH, name="wte")
        x = wte(ids) + nn.Embed(LENGTH, WIDTH, name="wpe")(jnp.arange(ids.shape[1]))
        x = nn.Dropout(0.1, deterministic=False)(x)
        for i in range(2):
            x = Block(name=f"h_{i}")(x)
        return wte.attend(nn.LayerNorm(epsilon=1e-5, name="ln_f")(x))


def train_step(state: TrainState, ids: jax.Array, key: jax.Array) -> Any:
    key = jax.random.fold_in(key, state.step)

    def loss_fn(params: Any) -> jax.Array:
        logits = state.apply_fn({"params": params}, ids[:, :-1], rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def case() -> Case:
    model = GPT2()
    params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))["params"]
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, eps=1e-5))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=tx)
    key = jax.random.key(7)
    batches = [(jax.random.randint(jax.random.key(i), (8, LENGTH + 1), 0, VOCABULARY), key) for i in range(2)]
    return Case(train_step, (state,), batches, donate=(0,), rtol=1e-3)
