"""An evaluation step: no gradient, a confusion matrix and top-k accuracy over the batch, parameters only read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from zoo.common import classes, mlp_params
from zoo.harness import About, Case

ABOUT = About("JAX", "evaluation: confusion matrix, top-k accuracy")


def step(metrics: dict[str, jax.Array], params: Any, x: jax.Array, y: jax.Array) -> Any:
    for p in params[:-1]:
        x = jnp.tanh(x @ p["w"] + p["b"])
    logits = x @ params[-1]["w"] + params[-1]["b"]
    predicted = logits.argmax(-1)
    _, best = jax.lax.top_k(logits, 3)
    new = {
        "confusion": metrics["confusion"].at[y, predicted].add(1),
        "top3": metrics["top3"] + (best == y[:, None]).any(-1).sum(),
        "seen": metrics["seen"] + x.shape[0],
    }
    return new, predicted


def case() -> Case:
    metrics = {"confusion": jnp.zeros((8, 8), jnp.int32), "top3": jnp.int32(0), "seen": jnp.int32(0)}
    params = mlp_params()
    return Case(step, (metrics,), [(params, *b) for b in classes(2)])
