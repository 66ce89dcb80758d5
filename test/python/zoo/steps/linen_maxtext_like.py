"""Linen with `nn.scan` over layers, `nn.remat` and logical axes boxed with the parameters, as in MaxText."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.core import meta

from zoo.harness import About, Case

ABOUT = About("Linen", "MaxText-like: nn.scan over layers, remat, logical axes boxed")


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: Any) -> Any:
        up = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        down = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("mlp", "embed"))
        h = nn.RMSNorm()(x)
        h = nn.with_logical_constraint(nn.silu(nn.Dense(64, kernel_init=up)(h)), ("batch", None, "mlp"))
        return x + nn.Dense(32, kernel_init=down)(h), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(64, 32)
        stack = nn.scan(
            nn.remat(Layer, prevent_cse=False), variable_axes={"params": 0}, split_rngs={"params": True}, length=4,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )  # fmt: skip
        x, _ = stack()(embed(tokens), None)
        return embed.attend(x)


def case() -> Case:
    model, tx = Model(), optax.adamw(1e-2, eps=1e-5)

    def step(params: Any, opt_state: Any, tokens: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    params = meta.unbox(model.init(jax.random.key(0), jnp.zeros((1, 8), jnp.int32))["params"])
    batches = [(jax.random.randint(jax.random.key(i), (8, 9), 0, 64),) for i in range(2)]
    return Case(step, (params, tx.init(params)), batches, donate=(0, 1), rtol=1e-3)
