"""Kernels of convolutions that are kept in parts: gathered once for both directions, though the gradient of the input
reads them turned round.
"""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import pytest

import rhino
from rhino.compile import collective_bytes

# The first kernel's input wants no gradient, so that nothing turns it round.
KERNELS = ((3, 3, 64, 128), (3, 3, 128, 256), (5, 1, 256, 64))


def step(kernels: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss(kernels: list[jax.Array]) -> jax.Array:
        h = x.astype(jnp.bfloat16)
        for k, strides in zip(kernels, ((1, 1), (2, 2), (1, 1)), strict=True):
            numbers = ("NHWC", "HWIO", "NHWC")
            h = jax.lax.conv_general_dilated(h, k.astype(h.dtype), strides, "SAME", dimension_numbers=numbers)
            h = jnp.tanh(h)
        return jnp.mean(h.astype(jnp.float32) ** 2)

    value, gradients = jax.value_and_grad(loss)(kernels)
    return [k - 0.1 * g for k, g in zip(kernels, gradients, strict=True)], value


# XLA: wire-widened
@pytest.mark.parametrize(("cluster", "itemsize"), [("cpu:1", 4), ("dgx-h100:1", 2)])
def test_they_are_gathered_once(cluster: str, itemsize: int, request: pytest.FixtureRequest) -> None:
    if cluster != "cpu:1":
        request.getfixturevalue("gpu_compiler")
    kernels = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in KERNELS]
    given = kernels, jax.ShapeDtypeStruct((512, 32, 32, 64), jnp.float32)
    plan = rhino.experts.plan("zero3", step, cluster, *given, donate_argnums=0)
    compiled = rhino.parallelize(step, cluster=cluster, plan=plan, donate_argnums=0).compile(*given)
    gathered = sum(map(prod, KERNELS)) * itemsize * 7 // 8  # all but a device's own part
    assert plan.predicted.comm_bytes["all-gather"] == gathered
    assert collective_bytes(compiled.collectives())["all-gather"] == gathered
