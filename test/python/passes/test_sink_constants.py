"""rhino-sink-constants in what XLA compiles: a layer makes its mask itself, and its loop carries none."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

from rhino.compile.executable import compile_module
from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager

SIZE = 192


def step(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Layers of masked attention, recomputed in their backward pass, whose gradients are returned."""

    @jax.checkpoint
    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        rows = jnp.arange(SIZE)
        scores = jnp.where(rows[:, None] >= rows, h @ h.swapaxes(1, 2), -jnp.inf)
        return jax.nn.softmax(scores) @ h @ w, None

    def loss(weights: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(layer, x, weights)[0])

    return jax.grad(loss)(weights)


@pytest.mark.parametrize("sunk", [False, True])
def test_a_loop_over_layers_carries_no_mask(sunk: bool, gpu_compiler: None) -> None:
    tensors = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 64, 64), (4, SIZE, 64))]
    text = jax.jit(step).lower(*tensors).as_text()
    module = parse_text(text, make_context())
    passes = ["rhino-inline", *["rhino-sink-constants"] * sunk, "canonicalize"]
    PassManager.parse(f"builtin.module({','.join(passes)})", module.context).run(module)
    hlo = compile_module(str(module), "h100").hlo_text()
    loops = [line for line in hlo.splitlines() if re.search(r"= \(.*\) while\(", line)]
    assert len(loops) == 2
    assert any("pred[" in line.partition(" while(")[0] for line in loops) != sunk
