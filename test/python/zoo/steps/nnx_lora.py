"""NNX as with `nnx.jit`: LoRA's factors (`nnx.LoRAParam`) are trained in place, all other parameters only read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from zoo.harness import About, Case

ABOUT = About("NNX", "nnx.jit style: nnx.LoRA, gradients of LoRAParam only")


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.LoRALinear(16, 32, lora_rank=4, rngs=rngs)
        self.second = nnx.LoRALinear(32, 32, lora_rank=4, rngs=rngs)
        self.head = nnx.Linear(32, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(nnx.tanh(self.second(nnx.tanh(self.first(x)))))


def train_step(model: Net, optimizer: nnx.Optimizer[Net], x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_fn(model: Net) -> jax.Array:
        return jnp.mean((model(x) - y) ** 2)

    loss, grads = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, nnx.LoRAParam))(model)
    optimizer.update(model, grads)
    return loss


def case() -> Case:
    model = Net(nnx.Rngs(0))
    # As made, one factor is zero and the other has no gradient.
    for layer in (model.first, model.second):
        layer.lora.lora_b[...] = 0.1 * jax.random.normal(jax.random.key(1), layer.lora.lora_b.shape)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2, eps=1e-5), wrt=nnx.LoRAParam)
    batches = []
    for i in range(2):
        a, b = jax.random.split(jax.random.key(i))
        batches.append((jax.random.normal(a, (16, 16)), jax.random.normal(b, (16, 4))))
    return Case(train_step, (model, optimizer), batches, donate=(0, 1), jit=nnx.jit, rtol=1e-3)
