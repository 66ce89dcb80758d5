"""The calling conventions of jax: static arguments, keywords, keys, scalars, pytrees, decorators, transformations."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rhino
from rhino.api.pins import make_keys_whole
from rhino.api.signature import Signature
from rhino.api.trace import import_module, trace
from rhino.dialect import functions, sdy

W = np.arange(64, dtype=np.float32).reshape(8, 8)


def test_static_arguments_select_the_program() -> None:
    def power(x: jax.Array, n: int, flip: bool = False) -> jax.Array:
        for _ in range(n - 1):
            x = x * x
        return -x if flip else x

    step = rhino.parallelize(power, static_argnums=(1, 2))
    np.testing.assert_allclose(step(W, 2), W * W)
    np.testing.assert_allclose(step(W, 3), W**4)
    np.testing.assert_allclose(step(W, 2, True), -W * W)
    np.testing.assert_allclose(step(W, n=2, flip=True), -W * W)
    np.testing.assert_allclose(step(W, flip=True, n=3), -(W**4))
    with pytest.raises(rhino.RhinoError, match="static argument 1 has the unhashable type list"):
        step(W, [2])


def test_static_argument_in_front() -> None:
    step = rhino.parallelize(lambda name, x: {name: x + 1}, static_argnums=0, donate_argnums=1)
    np.testing.assert_array_equal(step("a", W)["a"], W + 1)
    assert step.plan("a", W).arguments[0].name == "x"
    assert len(step.plan("a", W).in_shardings) == 1


def test_keywords_are_the_positional_arguments_they_name() -> None:
    def add(state: Any, batch: Any) -> Any:
        return state + batch

    step = rhino.parallelize(add)
    assert step.plan(W, W) is step.plan(W, batch=W) is step.plan(batch=W, state=W)
    np.testing.assert_array_equal(step(batch=2 * W, state=W), 3 * W)


def test_keyword_only_arguments() -> None:
    def scale(state: dict[str, Any], *, factor: Any, shift: Any = 0.0) -> dict[str, Any]:
        return {"w": state["w"] * factor + shift}

    step = rhino.parallelize(scale)
    np.testing.assert_array_equal(step({"w": W}, factor=2.0)["w"], 2 * W)
    np.testing.assert_array_equal(step({"w": W}, shift=1.0, factor=np.float32(3))["w"], 3 * W + 1)
    plan = step.plan({"w": W}, factor=2.0)
    assert [a.name for a in plan.arguments] == ["state['w']", "factor"]
    assert list(plan.keyword_shardings) == ["factor"]


def test_prng_keys_in_both_styles() -> None:
    def noise(key: Any, keys: Any, x: Any) -> Any:
        new, sub = jax.random.split(key)
        draws = jax.vmap(lambda k: jax.random.normal(k, (8,)))(keys)
        return new, keys, x + jax.random.normal(sub, (8, 8)) + draws

    for make in (jax.random.key, jax.random.PRNGKey):
        key, keys = make(1), jax.random.split(make(2), 8)
        new, same, found = rhino.parallelize(noise)(key, keys, W)
        expected_new, _, expected = jax.jit(noise)(key, keys, W)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        assert new.dtype == expected_new.dtype and same.shape == keys.shape
        assert jnp.all(jax.random.normal(new, (4,)) == jax.random.normal(expected_new, (4,)))


def test_the_bits_of_a_key_are_never_split() -> None:
    def split(keys: Any) -> Any:
        return jax.vmap(lambda k: jax.random.split(k)[0])(keys)

    keys = jax.random.split(jax.random.key(0), 16)
    signature = Signature(split, (), ())
    traced = trace(split, signature, signature.bind((keys,), {}))
    module = import_module(traced)
    sdy.add_mesh(module, "mesh", (("x", 4), ("y", 2)))
    main = functions.find(module, "main")
    assert main is not None
    sharding = sdy.tensor_sharding(module.context, "mesh", (("x",), ("y",)))
    functions.set_argument_attributes(main, [{sdy.SHARDING: sharding}])
    functions.set_result_attributes(main, [{sdy.SHARDING: sharding}])
    assert make_keys_whole(module, traced)
    for attributes in (*functions.argument_attributes(main), *functions.result_attributes(main)):
        assert sdy.dims_of(attributes[sdy.SHARDING]) == (("x",), ())
    assert not make_keys_whole(module, traced)


def test_python_scalars_keep_their_weak_types() -> None:
    step = rhino.parallelize(lambda x, s: (x * s, s + 1))
    half = jnp.asarray(W, jnp.bfloat16)
    scaled, count = step(half, 2)
    assert scaled.dtype == jnp.bfloat16 and count.weak_type
    assert step._lookup(step._signature.bind((half, count), {})) is step._lookup(step._signature.bind((half, 7), {}))
    assert step(W, np.float32(2))[0].dtype == jnp.float32
    assert step(W, True)[0].dtype == jnp.float32


def test_none_leaves_empty_arguments_and_nested_results() -> None:
    def mixed(a: Any, b: Any, empty: Any) -> Any:
        return {"a": (a["x"] * 2, None), "b": b, "empty": empty}

    found = rhino.parallelize(mixed)({"x": W, "y": None}, None, ())
    assert jax.tree.structure(found) == jax.tree.structure({"a": (0, None), "b": None, "empty": ()})
    np.testing.assert_array_equal(found["a"][0], 2 * W)
    plan = rhino.parallelize(mixed).plan({"x": W, "y": None}, None, ())
    plain = jax.jit(mixed, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
    np.testing.assert_array_equal(plain({"x": W, "y": None}, None, ())["a"][0], 2 * W)


def test_equinox_modules() -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(8, 8, 16, 1, key=jax.random.key(0))
    arrays, static = eqx.partition(model, eqx.is_array)

    def apply(arrays: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(arrays, static))(x)

    np.testing.assert_allclose(rhino.parallelize(apply)(arrays, W), apply(arrays, W), rtol=1e-5, atol=1e-5)


def test_decorator_with_and_without_options() -> None:
    @rhino.parallelize
    def double(x: jax.Array) -> jax.Array:
        """Twice."""
        return 2 * x

    @rhino.parallelize(mesh="8", donate_argnums=-1)
    def triple(x: jax.Array) -> jax.Array:
        return 3 * x

    np.testing.assert_array_equal(double(W), 2 * W)
    np.testing.assert_array_equal(triple(W), 3 * W)
    assert double.__doc__ == "Twice." and double.__name__ == "double"
    assert triple.plan(W).mesh == (("x", 8),)


def test_decorating_does_not_start_jax() -> None:
    code = (
        "import jax, rhino\n"
        "f = rhino.parallelize(lambda x: x + 1)\n"
        "jax.config.update('jax_num_cpu_devices', 2)\n"  # raises once the backend runs
        "print(f.cluster.num_devices, f.plan(jax.numpy.ones((4, 4))).devices)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.split() == ["2", "2"], done.stderr


def test_one_device() -> None:
    code = (
        "import jax, rhino\n"
        "f = rhino.parallelize(lambda w, x: (w - 1, x @ w), donate_argnums=0)\n"
        "w = jax.numpy.ones((4, 4))\n"
        "plan = f.plan(w, w)\n"
        "plain = jax.jit(lambda w, x: (w - 1, x @ w), in_shardings=plan.in_shardings)\n"
        "print(plan.devices, float(plain(w, w)[1].sum()), float(f(w, w + 0)[1].sum()))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.split() == ["1", "64.0", "64.0"], done.stderr


def test_partials_methods_and_builtins() -> None:
    class Model:
        def step(self, x: jax.Array) -> jax.Array:
            return x + 1

    np.testing.assert_array_equal(rhino.parallelize(Model().step)(W), W + 1)
    np.testing.assert_array_equal(rhino.parallelize(functools.partial(jnp.add, 2.0))(W), W + 2)
    np.testing.assert_array_equal(rhino.parallelize(lambda *xs: sum(xs))(W, W, W), 3 * W)


def test_inside_another_transformation_it_is_the_function() -> None:
    step = rhino.parallelize(lambda x: jnp.sum(x**2))
    assert jax.eval_shape(step, W).shape == ()
    np.testing.assert_allclose(jax.grad(step)(W), 2 * W)
    np.testing.assert_allclose(jax.jit(step)(W), (W**2).sum(), rtol=1e-6)


def test_planning_makes_no_arrays() -> None:
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)
    plan = rhino.parallelize(lambda x, b: x * b, cluster="dgx-h100:64").plan(huge, huge)
    assert plan.arguments[0].shape == (1 << 20, 1 << 20)
    assert all(any(dim) for dim in [plan.arguments[0].sharding])


def test_callbacks_survive_the_swap_of_the_module() -> None:
    seen: list[float] = []

    def noisy(x: jax.Array) -> jax.Array:
        jax.debug.callback(lambda v: seen.append(float(v)), jnp.sum(x))
        return x + 1

    step = rhino.parallelize(noisy)
    np.testing.assert_array_equal(step(W), W + 1)
    jax.effects_barrier()
    assert seen and all(v == W.sum() for v in seen)
