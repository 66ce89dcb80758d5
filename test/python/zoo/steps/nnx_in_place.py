"""NNX as with `nnx.jit`: the step changes the model, the optimizer and the metrics it is given, in place."""

from __future__ import annotations

import jax
import optax
from flax import nnx

from zoo.harness import About, Case

ABOUT = About("NNX", "nnx.jit style: model, optimizer and metrics updated in place, dropout", ci=("stages",))


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 32, rngs=rngs)])
        self.norm = nnx.LayerNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = self.dropout(nnx.gelu(layer(x)))
        return self.head(self.norm(x))


def loss_fn(model: Classifier, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = model(x)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits


def train_step(
    model: Classifier, optimizer: nnx.Optimizer[Classifier], metrics: nnx.MultiMetric, x: jax.Array, y: jax.Array
) -> jax.Array:
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, x, y)
    metrics.update(loss=loss, logits=logits, labels=y)
    optimizer.update(model, grads)
    return loss


def case() -> Case:
    model = Classifier(nnx.Rngs(0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2, eps=1e-5), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    batches = []
    for i in range(3):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 16)), jax.random.randint(b, (16,), 0, 8)))
    return Case(train_step, (model, optimizer, metrics), batches, jit=nnx.jit, rtol=1e-3)
