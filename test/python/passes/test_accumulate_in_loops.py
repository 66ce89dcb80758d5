"""rhino-accumulate-in-loops: gradients of scanned layers are those of before, on one device and in replicas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from rhino.compile import compile_module
from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager
from rhino.request import CompileRequest
from rhino.runtime import build

FAST_COMPILE = {"xla_backend_optimization_level": 0}
SPLIT = "rhino-inline,symbol-dce,canonicalize,rhino-classify-args,rhino-split-microbatch{count=4}"


def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradient descent on scanned layers."""

    def loss(w: jax.Array) -> jax.Array:
        h, _ = jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, w)
        return jnp.mean(h**2)

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.1 * gradient, value


@pytest.fixture(scope="module")
def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(3, 4, 4)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)]


def after(passes: str, arguments: list[np.ndarray]) -> ir.Module:
    text = str(jax.jit(step, donate_argnums=0).lower(*arguments).compiler_ir("stablehlo"))
    context = make_context()
    module = parse_text(text, context)
    PassManager.parse(f"builtin.module({passes})", context).run(module)
    module.operation.verify()
    return module


def test_results_are_those_of_the_step(arguments: list[np.ndarray]) -> None:
    module = after(f"{SPLIT},rhino-accumulate-in-loops", arguments)
    # The accumulator of the gradients is carried by the loop over layers: no sum of stacks is left in the loop.
    before = str(after(SPLIT, arguments))
    assert before.count("stablehlo.add") == str(module).count("stablehlo.add")
    stacks = ": tensor<3x4x4xf32>"
    assert [line for line in before.splitlines() if "stablehlo.add" in line and stacks in line]
    assert not [line for line in str(module).splitlines() if "stablehlo.add" in line and stacks in line]
    got = compile_module(str(module), "cpu", options=FAST_COMPILE)(*arguments)
    for found, wanted in zip(got, step(*arguments), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_replicas_add_such_accumulators_up(arguments: list[np.ndarray]) -> None:
    staged = "rhino-accumulate-in-loops,rhino-plan-stages{stages=1 topology=dgx-h100:1},rhino-form-fragments"
    module = after(f"{SPLIT},{staged},rhino-replicate-fragments{{count=2}},rhino-schedule", arguments)
    got = build(module, how=CompileRequest(FAST_COMPILE)).run(arguments)
    for found, wanted in zip(got, step(*arguments), strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)
