"""FixMatch: labelled and unlabelled examples through the net at once, concatenated along the batch, then split."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.common import mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "FixMatch: labelled and unlabelled batches concatenated and split")
TX = optax.sgd(0.1, momentum=0.9, nesterov=True)


def net(params: Any, x: jax.Array) -> jax.Array:
    for p in params[:-1]:
        x = jax.nn.gelu(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def step(params: Any, opt_state: Any, batch: dict[str, jax.Array], key: jax.Array) -> Any:
    n = batch["x"].shape[0]
    one, two = jax.random.split(key)
    weak = 0.1 * jax.random.normal(one, batch["unlabelled"].shape)
    strong = 0.5 * jax.random.normal(two, batch["unlabelled"].shape)

    def loss_fn(params: Any) -> Any:
        inputs = jnp.concatenate([batch["x"], batch["unlabelled"] + weak, batch["unlabelled"] + strong])
        logits = net(params, inputs)
        known, (weakly, strongly) = logits[:n], jnp.split(logits[n:], 2)
        supervised = optax.softmax_cross_entropy_with_integer_labels(known, batch["y"]).mean()
        guess = jax.lax.stop_gradient(jax.nn.softmax(weakly))
        sure = guess.max(-1) > 0.3
        consistent = optax.softmax_cross_entropy_with_integer_labels(strongly, guess.argmax(-1)) * sure
        return supervised + consistent.mean(), sure.mean()

    (loss, sure), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "sure": sure}


def case() -> Case:
    params, batches = mlp_params(), []
    for i in range(2):
        a, b, c, d = jax.random.split(jax.random.key(i), 4)
        batch = {
            "x": jax.random.normal(a, (8, 16)), "y": jax.random.randint(b, (8,), 0, 8),
            "unlabelled": jax.random.normal(c, (8, 16)),
        }  # fmt: skip
        batches.append((batch, d))
    return Case(step, (params, TX.init(params)), batches, donate=(0, 1), rtol=1e-3)
