"""Training and evaluation steps as their users write them, lowered by jax, with the role each argument must get.

Roles are told from argument names: `p` is a tree of parameters, `o` of optimizer state, `s` of other state that counts
as such, `x`, `y` and `t` are data, `k` and `c` are keys and constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

ROLES = {
    "p": "param",
    "o": "opt_state",
    "s": "opt_state",
    "x": "batch",
    "y": "batch",
    "t": "batch",
    "k": "other",
    "c": "other",
}


class MLP(nn.Module):
    """Two layers and a LayerNorm."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.LayerNorm()(nn.relu(nn.Dense(24)(x)))
        return nn.Dense(10)(x)


class ConvNet(nn.Module):
    """Convolution, BatchNorm, dropout, and a head."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(nn.Conv(6, (3, 3))(x))
        x = nn.Dropout(0.1, deterministic=not train)(nn.relu(x).mean((1, 2)))
        return nn.Dense(10)(x)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy over all positions."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def mlp_step(optimizer: optax.GradientTransformation, donate: bool, loss: str = "entropy", metrics: bool = True) -> str:
    """A training step of the MLP; `loss` is entropy (integer labels) or squares (float targets)."""
    model = MLP()
    x = jnp.ones((32, 16))
    y = jnp.ones((32,), jnp.int32) if loss == "entropy" else jnp.ones((32, 10))
    params = model.init(jax.random.key(0), x)

    def step(p: Any, o: Any, x: jax.Array, y: jax.Array) -> Any:
        def value(p: Any) -> jax.Array:
            out = model.apply(p, x)
            return cross_entropy(out, y) if loss == "entropy" else ((out - y) ** 2).mean()

        found, gradients = jax.value_and_grad(value)(p)
        updates, new = optimizer.update(gradients, o, p)
        state = optax.apply_updates(p, updates), new
        return (*state, found) if metrics else state

    return lower(step, params, optimizer.init(params), x, y, donate=(0, 1) if donate else ())


def scanned_gpt_step(donate: bool) -> str:
    """Attention blocks with stacked parameters under `lax.scan` and remat, tied embeddings, clipping and AdamW."""
    layers, width, vocabulary, batch, length = 3, 16, 50, 8, 12
    shapes = {
        "qkv": (width, 3 * width),
        "o": (width, width),
        "ln": (width,),
        "w1": (width, 32),
        "b1": (32,),
        "w2": (32, width),
    }
    blocks = {name: jnp.ones((layers, *shape)) for name, shape in shapes.items()}
    params = {"embedding": jnp.ones((vocabulary, width)), "position": jnp.ones((length, width)), "blocks": blocks}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def forward(p: Any, t: jax.Array) -> jax.Array:
        def block(h: jax.Array, w: Any) -> tuple[jax.Array, None]:
            q, k, v = jnp.split((h - h.mean(-1, keepdims=True)) * w["ln"] @ w["qkv"], 3, axis=-1)
            scores = jax.nn.softmax(jnp.einsum("bsd,btd->bst", q, k))
            h = h + jnp.einsum("bst,btd->bsd", scores, v) @ w["o"]
            return h + jax.nn.gelu(h @ w["w1"] + w["b1"]) @ w["w2"], None

        h, _ = jax.lax.scan(jax.checkpoint(block), p["embedding"][t] + p["position"], p["blocks"])
        return h @ p["embedding"].T

    def step(p: Any, o: Any, t: jax.Array) -> Any:
        found, gradients = jax.value_and_grad(lambda p: cross_entropy(forward(p, t[:, :-1]), t[:, 1:]))(p)
        updates, new = optimizer.update(gradients, o, p)
        return optax.apply_updates(p, updates), new, found

    tokens = jnp.ones((batch, length + 1), jnp.int32)
    return lower(step, params, optimizer.init(params), tokens, donate=(0, 1) if donate else ())


def batch_norm(donate: bool, train: bool = True) -> str:
    """The convolutional net: a training step with running statistics and a dropout key, or evaluation."""
    model = ConvNet()
    x, y = jnp.ones((8, 8, 8, 3)), jnp.ones((8,), jnp.int32)
    variables = model.init(jax.random.key(0), x, False)
    optimizer = optax.adam(1e-3)

    def step(p: Any, s: Any, o: Any, x: jax.Array, y: jax.Array, k: jax.Array) -> Any:
        def value(p: Any) -> tuple[jax.Array, Any]:
            out, new = model.apply(
                {"params": p, "batch_stats": s}, x, True, mutable=["batch_stats"], rngs={"dropout": k}
            )
            return cross_entropy(out, y), new["batch_stats"]

        (found, statistics), gradients = jax.value_and_grad(value, has_aux=True)(p)
        updates, new = optimizer.update(gradients, o, p)
        return optax.apply_updates(p, updates), statistics, new, found

    def evaluate(p: Any, p_stats: Any, x: jax.Array) -> jax.Array:
        return model.apply({"params": p, "batch_stats": p_stats}, x, False)

    p, s = variables["params"], variables["batch_stats"]
    if not train:
        return lower(evaluate, p, s, x, donate=())
    return lower(step, p, s, optimizer.init(p), x, y, jax.random.key(1), donate=(0, 1, 2) if donate else ())


def loss_only() -> str:
    """A loss with weight decay and a scalar coefficient, as evaluated or differentiated by someone else."""
    model = MLP()
    x, y = jnp.ones((32, 16)), jnp.ones((32,), jnp.int32)
    params = model.init(jax.random.key(0), x)

    def loss(p: Any, x: jax.Array, y: jax.Array, c: jax.Array) -> jax.Array:
        return cross_entropy(model.apply(p, x), y) + c * sum((w**2).sum() for w in jax.tree.leaves(p))

    return lower(loss, params, x, y, jnp.float32(0.1), donate=())


def gradients_only() -> str:
    """Gradients, returned in the types of the parameters but not made of them."""
    model = MLP()
    x, y = jnp.ones((32, 16)), jnp.ones((32,), jnp.int32)
    params = model.init(jax.random.key(0), x)

    def gradients(p: Any, x: jax.Array, y: jax.Array) -> Any:
        return jax.grad(lambda p: cross_entropy(model.apply(p, x), y))(p)

    return lower(gradients, params, x, y, donate=())


def several_steps() -> str:
    """Steps in a scan over stacked batches: optimizer state of one iteration makes the parameters of the next."""
    x, y = jnp.ones((5, 8, 16)), jnp.ones((5, 8, 4))
    params = {"w": jnp.ones((16, 4)), "b": jnp.ones((4,))}
    optimizer = optax.adam(1e-3)

    def steps(p: Any, o: Any, x: jax.Array, y: jax.Array) -> Any:
        def one(carry: Any, data: Any) -> Any:
            p, o = carry
            found, g = jax.value_and_grad(lambda p: ((data[0] @ p["w"] + p["b"] - data[1]) ** 2).mean())(p)
            updates, o = optimizer.update(g, o, p)
            return (optax.apply_updates(p, updates), o), found

        (p, o), losses = jax.lax.scan(one, (p, o), (x, y))
        return p, o, losses

    return lower(steps, params, optimizer.init(params), x, y, donate=(0, 1))


def lower(function: Callable[..., Any], *arguments: Any, donate: tuple[int, ...]) -> str:
    """StableHLO text with argument names."""
    module = jax.jit(function, donate_argnums=donate).lower(*arguments).compiler_ir("stablehlo")
    return str(module.operation.get_asm(enable_debug_info=True))


PROGRAMS: dict[str, Callable[[], str]] = {
    "mlp, adam": lambda: mlp_step(optax.adam(1e-3), donate=True),
    "mlp, adam, no donation": lambda: mlp_step(optax.adam(1e-3), donate=False),
    "mlp, adamw, squares": lambda: mlp_step(optax.adamw(1e-3), donate=True, loss="squares"),
    "mlp, adamw, squares, no donation": lambda: mlp_step(optax.adamw(1e-3), donate=False, loss="squares"),
    "mlp, adam, no metrics": lambda: mlp_step(optax.adam(1e-3), donate=True, metrics=False),
    "mlp, momentum": lambda: mlp_step(optax.sgd(0.1, momentum=0.9), donate=True),
    "mlp, momentum, no donation, no metrics": lambda: mlp_step(
        optax.sgd(0.1, momentum=0.9), donate=False, metrics=False
    ),
    "mlp, adafactor": lambda: mlp_step(optax.adafactor(1e-3, min_dim_size_to_factor=8), donate=True),
    "mlp, lamb": lambda: mlp_step(optax.lamb(1e-3), donate=True),
    "mlp, muon": lambda: mlp_step(optax.contrib.muon(1e-3), donate=True),
    "scanned gpt": lambda: scanned_gpt_step(donate=True),
    "scanned gpt, no donation": lambda: scanned_gpt_step(donate=False),
    "batch norm": lambda: batch_norm(donate=True),
    "batch norm, no donation": lambda: batch_norm(donate=False),
    "batch norm, evaluation": lambda: batch_norm(donate=False, train=False),
    "loss only": loss_only,
    "gradients only": gradients_only,
    "several steps": several_steps,
}
