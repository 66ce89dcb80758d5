"""Hugging Face Flax: `FlaxBertForSequenceClassification` of a tiny configuration, dropout, AdamW."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("HF Flax", "BERT for classification, attention mask, dropout", needs=("transformers",))


def case() -> Case:
    from transformers import BertConfig, FlaxBertForSequenceClassification

    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    model = FlaxBertForSequenceClassification(config, input_shape=(1, 8), seed=0)
    tx = optax.adamw(1e-3, eps=1e-5)

    def step(params: Any, opt_state: Any, batch: dict[str, jax.Array], key: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = model(
                input_ids=batch["ids"], attention_mask=batch["mask"], params=params, dropout_rng=key, train=True
            ).logits
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    batches = []
    for i in range(2):
        a, b, c, d = jax.random.split(jax.random.key(i), 4)
        mask = (jnp.arange(8) < jax.random.randint(b, (8, 1), 3, 9)).astype(jnp.int32)
        ids, label = jax.random.randint(a, (8, 8), 0, 64), jax.random.randint(c, (8,), 0, 3)
        batches.append(({"ids": ids, "mask": mask, "label": label}, d))
    return Case(step, (model.params, tx.init(model.params)), batches, rtol=1e-3)
