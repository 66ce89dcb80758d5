"""A VAE: the reparameterisation trick with a key per example, the sum of two losses, aux outputs."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from zoo.harness import About, Case

ABOUT = About("Linen", "VAE: reparameterisation, KL, binary cross-entropy")


class VAE(nn.Module):
    def setup(self) -> None:
        self.encoder = nn.Dense(32)
        self.mean = nn.Dense(8)
        self.logvar = nn.Dense(8)
        self.decoder = nn.Sequential([nn.Dense(32), nn.relu, nn.Dense(24)])

    def __call__(self, x: jax.Array, key: jax.Array) -> Any:
        h = nn.relu(self.encoder(x))
        mean, logvar = self.mean(h), self.logvar(h)
        z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(key, mean.shape)
        return self.decoder(z), mean, logvar


def case() -> Case:
    model = VAE()
    tx = optax.adam(1e-2)

    def step(params: Any, opt_state: Any, x: jax.Array, key: jax.Array) -> Any:
        def loss_fn(params: Any) -> Any:
            logits, mean, logvar = model.apply({"params": params}, x, key)
            bce = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1).mean()
            kld = -0.5 * jnp.sum(1 + logvar - mean**2 - jnp.exp(logvar), -1).mean()
            return bce + kld, {"bce": bce, "kld": kld}

        (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, {"loss": loss, **aux}

    params = model.init(jax.random.key(0), jnp.ones((1, 24)), jax.random.key(1))["params"]
    batches = [((jax.random.uniform(jax.random.key(i), (16, 24)) > 0.5) * 1.0, jax.random.key(i)) for i in range(2)]
    return Case(step, (params, tx.init(params)), batches, donate=(0, 1), rtol=1e-3)
