"""Parameters in groups: `multi_transform` by label, hyperparameters injected into the state, an EMA chained."""

from __future__ import annotations

from typing import Any

import jax
import optax

from zoo.common import trained_mlp
from zoo.harness import About, Case

ABOUT = About("Optax", "multi_transform, inject_hyperparams, ema")


def case() -> Case:
    def labels(params: Any) -> Any:
        return jax.tree.map(lambda p: "bias" if p.ndim == 1 else "weight", params)

    return trained_mlp(
        optax.multi_transform(
            {
                "weight": optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2, eps=1e-5),
                "bias": optax.chain(optax.ema(0.9), optax.sgd(0.05)),
            },
            labels,
        )
    )
