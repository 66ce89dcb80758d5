"""Linen: residual blocks with BatchNorm, whose running statistics are state."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state

from zoo.harness import About, Case, Refused

ABOUT = About(
    "Linen", "ResNet with BatchNorm, SGD with momentum",
    stages=Refused("not sync-free", "statistics of the batch"),
)  # fmt: skip


class TrainState(train_state.TrainState):
    batch_stats: Any


class Block(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.Conv(self.width, (3, 3), use_bias=False)(x)
        y = nn.relu(nn.BatchNorm(use_running_average=False)(y))
        y = nn.Conv(self.width, (3, 3), use_bias=False)(y)
        y = nn.BatchNorm(use_running_average=False, scale_init=nn.initializers.zeros)(y)
        if x.shape != y.shape:
            x = nn.Conv(self.width, (1, 1))(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = Block(8)(x)
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = Block(16)(x)
        return nn.Dense(10)(x.mean((1, 2)))


def step(state: TrainState, images: jax.Array, labels: jax.Array) -> Any:
    def loss_fn(params: Any) -> Any:
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, images, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, updates

    (loss, updates), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=updates["batch_stats"]), loss


def case() -> Case:
    model = ResNet()
    variables = model.init(jax.random.key(0), jnp.ones((1, 8, 8, 3)))
    tx = optax.sgd(0.05, momentum=0.9, nesterov=True)
    state = TrainState.create(
        apply_fn=model.apply, params=variables["params"], tx=tx, batch_stats=variables["batch_stats"]
    )
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 8, 8, 3)), jax.random.randint(b, (16,), 0, 10)))
    return Case(step, (state,), batches, donate=(0,), rtol=1e-3)
