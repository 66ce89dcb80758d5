"""Training steps whose best stages depend on the size of the batch, and where arrays are.

`towers` has the layers of two encoders beside each other, so that no order of layers is the only one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.models import gpt

WIDTH, ROWS = 64, 16
# `init`, the step, and batches of a size.
Model = tuple[Callable[..., Any], Callable[..., Any], Callable[[int], dict[str, np.ndarray]]]


def towers(first: Sequence[int], second: Sequence[int]) -> Model:
    """`init`, a step with momentum, and batches, of two encoders whose outputs are multiplied.

    Args:
      first, second: the width of each layer between its two products.
    """

    def init(key: jax.Array) -> dict[str, Any]:
        keys = iter(jax.random.split(key, 2 * len([*first, *second])))

        def tower(widths: Sequence[int]) -> list[dict[str, jax.Array]]:
            shapes = [{"up": (WIDTH, w), "down": (w, WIDTH)} for w in widths]
            return [{k: jax.random.normal(next(keys), s) * 0.1 for k, s in layer.items()} for layer in shapes]

        params = {"first": tower(first), "second": tower(second)}
        return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params), "step": 0}

    def step(state: Any, batch: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(state["params"], batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
        params = jax.tree.map(lambda p, m: p - 1e-3 * m, state["params"], momentum)
        return {"params": params, "momentum": momentum, "step": state["step"] + 1}, {"loss": loss}

    return init, step, tower_batch


def transformer(layers: int, scan: bool) -> Model:
    """A tiny GPT, its layers one loop if `scan`."""
    config = dataclasses.replace(gpt.PRESETS["tiny"], layers=layers, width=32, heads=2, seq_len=16, scan=scan)
    init, step = gpt.make_train_step(config)
    return init, step, lambda size: gpt.example_batch(config, size)


def loss_of(params: Any, batch: Any) -> jax.Array:
    """The mean square of the difference to the target."""
    outputs = []
    for name in ("first", "second"):
        x = batch[name]
        for layer in params[name]:
            x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
        outputs.append(x)
    return jnp.mean(((outputs[0] * outputs[1]).mean((-1, -2)) - batch["target"]) ** 2)


def tower_batch(size: int) -> dict[str, np.ndarray]:
    """Examples of ROWS rows for each encoder."""
    random = np.random.default_rng(size)
    batch = {name: random.normal(size=(size, ROWS, WIDTH)).astype(np.float32) for name in ("first", "second")}
    return {**batch, "target": random.normal(size=size).astype(np.float32)}


def places(tree: Any) -> dict[str, list[list[tuple[int, str]]]]:
    """By leaf, for each of its pieces, the devices that have it and which part."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        pieces = getattr(leaf, "pieces", [leaf])
        found[jax.tree_util.keystr(path)] = [
            sorted((d.id, str(index)) for d, index in piece.sharding.devices_indices_map(piece.shape).items())
            for piece in pieces
        ]
    return found
