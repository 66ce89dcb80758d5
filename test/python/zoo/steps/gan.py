"""A GAN: the discriminator's and the generator's updates in one step, with an optimizer each."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("JAX", "GAN: two models, two optimizers, one step")


class State(NamedTuple):
    generator: Any
    discriminator: Any
    generator_opt: Any
    discriminator_opt: Any


def mlp(params: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    for w, b in params[:-1]:
        x = jax.nn.leaky_relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def init_mlp(key: jax.Array, sizes: list[int]) -> list[tuple[jax.Array, jax.Array]]:
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]


TX = optax.adam(1e-3, b1=0.5, eps=1e-6)


def step(state: State, real: jax.Array, key: jax.Array) -> tuple[State, dict[str, jax.Array]]:
    noise = jax.random.normal(key, (real.shape[0], 8))
    bce = optax.sigmoid_binary_cross_entropy

    def discriminator_loss(d: Any) -> jax.Array:
        fake = mlp(state.generator, noise)
        return bce(mlp(d, real), 1.0).mean() + bce(mlp(d, fake), 0.0).mean()

    d_loss, d_grads = jax.value_and_grad(discriminator_loss)(state.discriminator)
    updates, d_opt = TX.update(d_grads, state.discriminator_opt)
    d = optax.apply_updates(state.discriminator, updates)

    def generator_loss(g: Any) -> jax.Array:
        return bce(mlp(d, mlp(g, noise)), 1.0).mean()

    g_loss, g_grads = jax.value_and_grad(generator_loss)(state.generator)
    updates, g_opt = TX.update(g_grads, state.generator_opt)
    g = optax.apply_updates(state.generator, updates)
    return State(g, d, g_opt, d_opt), {"d": d_loss, "g": g_loss}


def case() -> Case:
    a, b = jax.random.split(jax.random.key(0))
    g, d = init_mlp(a, [8, 32, 16]), init_mlp(b, [16, 32, 1])
    state = State(g, d, TX.init(g), TX.init(d))
    batches = [(jax.random.normal(jax.random.key(i), (16, 16)), jax.random.key(9 + i)) for i in range(2)]
    return Case(step, (state,), batches, donate=(0,), rtol=1e-3)
