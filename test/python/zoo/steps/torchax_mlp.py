"""torchax: a PyTorch module as a function of its weights (`extract_jax`), trained with Optax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("torchax", "torch.nn module by extract_jax, Optax", needs=("torchax", "torch"))


def case() -> Case:
    import torch
    import torchax

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    )
    weights, apply = torchax.extract_jax(model)
    weights = jax.tree.map(jnp.asarray, weights)
    tx = optax.adam(1e-2, eps=1e-5)

    def step(weights: Any, opt_state: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(lambda w: ((apply(w, (x,)) - y) ** 2).mean())(weights)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(weights, updates), opt_state, loss

    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 16)), jax.random.normal(b, (16, 4))))
    return Case(step, (weights, tx.init(weights)), batches, rtol=1e-3)
