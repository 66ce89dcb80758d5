"""Programs with loops over stacked layers, as their users write them, and as jax lowers them.

Every program is `step(params, x, key)` over 6 layers of width 8; no other dimension has size 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxlib.mlir import ir

from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager

LAYERS, WIDTH, BATCH = 6, 8, 4
F32 = jnp.float32
Spec = jax.ShapeDtypeStruct
Loss = Callable[[Any, jax.Array, jax.Array], jax.Array]

STACKED = {"w": Spec((LAYERS, WIDTH, WIDTH), F32), "b": Spec((LAYERS, WIDTH), F32)}
X = Spec((BATCH, WIDTH), F32)
KEY = Spec((2,), jnp.uint32)


def plain(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """Layers one after the other."""
    return (jax.lax.scan(lambda h, p: (h + jnp.tanh(h @ p["w"] + p["b"]), None), x, p)[0] ** 2).mean()


def remat(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """Layers that are computed again in the backward pass."""
    layer = jax.checkpoint(lambda h, p: (h + jnp.tanh(h @ p["w"] + p["b"]), None))
    return (jax.lax.scan(layer, x, p)[0] ** 2).mean()


def half(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """Parameters cast to half precision in front of the loop."""
    return plain(jax.tree.map(lambda a: a.astype(jnp.bfloat16), p), x.astype(jnp.bfloat16), key).astype(F32)


def dropout(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """A key for each layer."""

    def layer(h: jax.Array, pk: Any) -> Any:
        p, k = pk
        return h + jnp.tanh(h @ p["w"] + p["b"]) * jax.random.bernoulli(k, 0.9, h.shape), None

    return (jax.lax.scan(layer, x, (p, jax.random.split(key, LAYERS)))[0] ** 2).mean()


def auxiliary(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """A loss per layer, and rates that depend on the layer."""

    def layer(h: jax.Array, pr: Any) -> Any:
        p, rate = pr
        y = jnp.tanh(h @ p["w"] + p["b"]) * rate
        return h + y, (y**2).mean()

    h, losses = jax.lax.scan(layer, x, (p, np.linspace(1.0, 0.5, LAYERS, dtype=np.float32)))
    return (h**2).mean() + 0.1 * losses.mean()


def projected(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """Something made of all layers' parameters in front of the loop, which runs from the last layer to the first."""
    bias = jnp.einsum("bh,lhf->lbf", x, p["w"]) + p["b"][:, None]
    return (jax.lax.scan(lambda h, b: (jnp.tanh(h + b), None), x, bias, reverse=True)[0] ** 2).mean()


def grouped(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """A loop over groups of layers around one over the layers of a group."""
    groups = jax.tree.map(lambda a: a.reshape(3, 2, *a.shape[1:]), p)
    layer = jax.checkpoint(lambda h, p: (h + jnp.tanh(h @ p["w"] + p["b"]), None))
    return (jax.lax.scan(lambda h, g: (jax.lax.scan(layer, h, g)[0], None), x, groups)[0] ** 2).mean()


def over_time(p: Any, x: jax.Array, key: jax.Array) -> jax.Array:
    """A loop over time steps around one over layers."""

    def cell(hs: jax.Array, xt: jax.Array) -> Any:
        y, hs = jax.lax.scan(lambda y, ph: (jnp.tanh(y @ ph[0]["w"] + ph[0]["b"] + ph[1]),) * 2, xt, (p, hs))
        return hs, y

    steps = jnp.stack([x, 2 * x, -x])
    return (jax.lax.scan(cell, jnp.zeros((LAYERS, BATCH, WIDTH)), steps)[1] ** 2).mean()


def sgd(p: Any, g: Any) -> Any:
    """A plain update."""
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g)


LOSSES = {f.__name__: f for f in (plain, remat, half, dropout, auxiliary, projected, grouped, over_time)}
OPTIMIZERS: dict[str, optax.GradientTransformation] = {
    "clipped adam": optax.chain(optax.clip_by_global_norm(0.01), optax.adamw(1e-2)),
    "lamb": optax.lamb(1e-2),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "every second step": optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
    "if finite": optax.apply_if_finite(optax.adam(1e-2), 3),
    "muon": optax.contrib.muon(1e-2),
}


def training(loss: Loss, optimizer: optax.GradientTransformation | None = None) -> tuple[Any, tuple[Any, ...]]:
    """A training step and its abstract arguments."""
    if optimizer is None:

        def step(p: Any, x: jax.Array, key: jax.Array) -> Any:
            value, g = jax.value_and_grad(loss)(p, x, key)
            return sgd(p, g), value

        return step, (STACKED, X, KEY)

    def stateful(state: Any, x: jax.Array, key: jax.Array) -> Any:
        p, o = state
        value, g = jax.value_and_grad(loss)(p, x, key)
        updates, o = optimizer.update(g, o, p)
        return (optax.apply_updates(p, updates), o), value

    return stateful, ((STACKED, jax.eval_shape(optimizer.init, STACKED)), X, KEY)


def accumulating() -> tuple[Any, tuple[Any, ...]]:
    """Gradients accumulated by the user in a loop over micro-batches."""

    def step(p: Any, xs: jax.Array, key: jax.Array) -> Any:
        def micro(g: Any, x: jax.Array) -> Any:
            value, more = jax.value_and_grad(plain)(p, x, key)
            return jax.tree.map(jnp.add, g, more), value

        g, values = jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, p), xs)
        return sgd(p, g), values.mean()

    return step, (STACKED, Spec((3, BATCH, WIDTH), F32), KEY)


def counted() -> tuple[Any, tuple[Any, ...]]:
    """fori_loop, indexing the parameters and using the index in arithmetic."""

    def step(p: Any, x: jax.Array, key: jax.Array) -> Any:
        def layer(i: jax.Array, h: jax.Array) -> jax.Array:
            return jnp.tanh(h @ p["w"][i] + p["b"][i]) * (1 + i)

        return jax.lax.fori_loop(0, LAYERS, layer, x)

    return step, (STACKED, X, KEY)


def normalised(step: Any, arguments: tuple[Any, ...]) -> ir.Module:
    """The step as jax lowers it, inlined and with roles."""
    text = jax.jit(step, donate_argnums=(0,), keep_unused=True).lower(*arguments).as_text()
    module = parse_text(text, make_context())
    passes = "builtin.module(rhino-inline,symbol-dce,canonicalize,rhino-classify-args)"
    PassManager.parse(passes, module.context).run(module)
    return module
