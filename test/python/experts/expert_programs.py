"""Training steps of the example models as experts read them, traced once per test process."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from examples import export
from rhino.experts import ExpertProgram
from rhino.experts.facts import ProgramLeaf
from rhino.plan.module import parse_module


@functools.cache
def model(name: str, preset: str = "tiny", batch: int = 0, **changes: Any) -> ExpertProgram:
    """The step of examples/models/NAME, with other fields of its configuration where given."""
    module = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(module.PRESETS[preset], **changes)
    _, step = module.make_train_step(config)
    inputs = module.abstract_inputs(config, batch or module.BATCH[preset])
    return read(str(export.lower(step, *inputs)))


def read(text: str) -> ExpertProgram:
    return ExpertProgram.of(parse_module(text, "test"), "dgx-a100:1")


def key(leaf: ProgramLeaf) -> str:
    """The last part of a name that says what a parameter is: 'query', 'up', ..., never 'kernel'."""
    words = [w for w in leaf.name.replace("[", ".").replace("]", "").replace("'", "").split(".") if w]
    return next(w for w in reversed(words) if w not in ("kernel", "value", "scale", "embedding", "table"))


@functools.cache
def dense_chain(widths: tuple[int, ...], batch: int) -> ExpertProgram:
    """Dense layers with ReLU and plain gradient descent, a tuple of matrices: names that say nothing."""

    def step(weights: tuple[jax.Array, ...], x: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        def loss(ws: tuple[jax.Array, ...]) -> jax.Array:
            h = x
            for w in ws:
                h = jax.nn.relu(h @ w)
            return (h**2).mean()

        value, grads = jax.value_and_grad(loss)(weights)
        return tuple(w - 0.1 * g for w, g in zip(weights, grads, strict=True)), value

    shapes = tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in itertools.pairwise(widths))
    lowered = jax.jit(step, donate_argnums=(0,)).lower(shapes, jax.ShapeDtypeStruct((batch, widths[0]), jnp.float32))
    return read(str(lowered.compiler_ir("stablehlo")))


@functools.cache
def dense_adam(widths: tuple[int, ...], batch: int) -> ExpertProgram:
    """Dense layers with tanh and Adam."""
    tx = optax.adam(1e-3)

    def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        def loss(ws: tuple[jax.Array, ...]) -> jax.Array:
            h = x
            for w in ws:
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    def init() -> Any:
        params = tuple(jnp.zeros(s) for s in itertools.pairwise(widths))
        return {"params": params, "opt": tx.init(params)}

    inputs = jax.eval_shape(init), jax.ShapeDtypeStruct((batch, widths[0]), jnp.float32)
    return read(str(jax.jit(step, donate_argnums=(0,)).lower(*inputs).compiler_ir("stablehlo")))


@functools.cache
def lookup_tower(rows: int, width: int, hidden: int, batch: int) -> ExpertProgram:
    """A large embedding table and a small tower over it, with Adagrad, as in recommendation models."""
    tx = optax.adagrad(0.01)

    def init(key: jax.Array) -> Any:
        params = {
            "table": jax.random.normal(key, (rows, width)),
            "tower": {"up": jax.random.normal(key, (width, hidden)), "down": jax.random.normal(key, (hidden, 1))},
        }
        return {"params": params, "opt": tx.init(params)}

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        def loss(params: Any) -> jax.Array:
            x = params["table"][batch["ids"]].mean(axis=1)
            y = jax.nn.relu(x @ params["tower"]["up"]) @ params["tower"]["down"]
            return ((y[:, 0] - batch["clicks"]) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    state = jax.eval_shape(init, jax.random.key(0))
    data = {
        "ids": jax.ShapeDtypeStruct((batch, 8), jnp.int32),
        "clicks": jax.ShapeDtypeStruct((batch,), jnp.float32),
    }
    return read(str(export.lower(step, state, data)))
