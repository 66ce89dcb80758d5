"""A two-tower recommender: users and items through towers of their own, scored by the product of what comes out.

Owns the one model of the stage benchmark that is not among the examples. No order of its layers alternates the towers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Layers and widths of the towers, by preset.
PRESETS = {
    "small": ((3, 32), (2, 64)),
    "wide": ((24, 4096), (12, 8192)),
}


def step(preset: str, batch: int) -> tuple[Callable[..., Any], Any, Any]:
    """The training step, its abstract state and batch."""
    import jax
    import jax.numpy as jnp

    towers = PRESETS[preset]

    def tower(weights: list[Any], x: Any) -> Any:
        for w in weights:
            x = jax.nn.relu(x @ w)
        return x

    def loss(params: dict[str, Any], data: dict[str, Any]) -> Any:
        ends = [tower(params[name], data[name]) @ params[f"{name}_out"] for name in ("user", "item")]
        scores = (ends[0] * ends[1]).sum(axis=-1)
        return jnp.mean(jnp.logaddexp(0.0, scores) - data["clicked"] * scores)

    def train_step(params: dict[str, Any], data: dict[str, Any]) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(params, data)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

    params: dict[str, Any] = {}
    data: dict[str, Any] = {"clicked": jax.ShapeDtypeStruct((batch,), jnp.float32)}
    for name, (layers, width) in zip(("user", "item"), towers, strict=True):
        params[name] = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * layers
        params[f"{name}_out"] = jax.ShapeDtypeStruct((width, 32), jnp.float32)
        data[name] = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    return train_step, params, data
