"""A step of dense layers, as a StableHLO module and as functions of any widths."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Step = tuple[Callable[..., Any], tuple[Any, ...]]
STEP = """
module @jit_step {
  func.func public @main(%w: tensor<256x512xf32> {tf.aliasing_output = 0 : i32} loc("state['w']"),
                         %x: tensor<64x256xf32> loc("batch")) -> tensor<256x512xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<64x256xf32>, tensor<256x512xf32>) -> tensor<64x512xf32>
    %1 = stablehlo.dot_general %x, %0, contracting_dims = [0] x [0]
        : (tensor<64x256xf32>, tensor<64x512xf32>) -> tensor<256x512xf32>
    %2 = stablehlo.subtract %w, %1 : tensor<256x512xf32>
    return %2 : tensor<256x512xf32>
  }
}
"""


def chain(widths: tuple[int, ...], batch: int) -> Step:
    """Dense layers and plain gradient descent, of which weights the step takes a dictionary."""

    def step(weights: Any, x: jax.Array) -> Any:
        def loss(ws: Any) -> jax.Array:
            h = x
            for name in sorted(ws):
                h = jax.nn.relu(h @ ws[name])
            return (h**2).mean()

        value, grads = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    shapes = {f"w{i}": jax.ShapeDtypeStruct(s, jnp.float32) for i, s in enumerate(itertools.pairwise(widths))}
    return step, (shapes, jax.ShapeDtypeStruct((batch, widths[0]), jnp.float32))
