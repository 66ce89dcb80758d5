"""NNX as with `nnx.jit`: a CNN with BatchNorm, its running statistics changed in place, SGD with momentum."""

from __future__ import annotations

from typing import Any

import jax
import optax
from flax import nnx

from zoo.harness import About, Case, Refused

ABOUT = About(
    "NNX", "nnx.jit style: CNN, BatchNorm's statistics in place", ci=("mesh",),
    stages=Refused("not sync-free", "statistics of the batch"),
)  # fmt: skip


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 8, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.head = nnx.Linear(8 * 16, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.avg_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), strides=(2, 2))
        return self.head(x.reshape(x.shape[0], -1))


def train_step(model: CNN, optimizer: nnx.Optimizer[CNN], batch: dict[str, jax.Array]) -> jax.Array:
    def loss_fn(model: CNN) -> Any:
        logits = model(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def case() -> Case:
    model = CNN(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, momentum=0.9, nesterov=True), wrt=nnx.Param)
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batch = {"image": jax.random.normal(a, (16, 8, 8, 3)), "label": jax.random.randint(b, (16,), 0, 8)}
        batches.append((batch,))
    return Case(train_step, (model, optimizer), batches, donate=(0, 1), jit=nnx.jit, rtol=1e-3)
