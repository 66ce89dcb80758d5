"""Hugging Face Flax: `FlaxGPT2LMHeadModel` of a tiny configuration, shifted labels, Adafactor."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("HF Flax", "GPT-2 language model, Adafactor", needs=("transformers",))


def case() -> Case:
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = FlaxGPT2LMHeadModel(config, input_shape=(1, 8), seed=0)
    tx = optax.adafactor(1e-2, min_dim_size_to_factor=16)

    def step(params: Any, opt_state: Any, ids: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = model(ids, params=params).logits
            return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], ids[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    batches = [(jax.random.randint(jax.random.key(i), (8, 8), 0, 64, jnp.int32),) for i in range(2)]
    return Case(step, (model.params, tx.init(model.params)), batches, rtol=1e-3)
