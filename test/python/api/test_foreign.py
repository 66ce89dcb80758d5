"""Objects of Keras and torchax: used the way their users would, with the same numbers, or refused with that way.

Neither is installed for CI: stand-ins have what is looked at there. With `pip install keras torch torchax` all run.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rhino

X = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)


@pytest.mark.parametrize(
    ("argument", "name"),
    [("train", "mode"), ({"f": jnp.tanh}, r"mode\['f'\]"), ([1, object()], r"mode\[1\]")],
)
def test_what_is_no_array_is_named(argument: Any, name: str) -> None:
    step = rhino.parallelize(lambda mode, x: x)
    for call in (step, step.plan, step.lower):
        with pytest.raises(
            rhino.RhinoError, match=rf"^{name} is a \w+, which is no array.*make it static \(static_arg"
        ):
            call(argument, X)


# --- stand-ins --------------------------------------------------------------------------------------------------------


class Variable:
    """As Keras keeps a variable."""

    path = "dense/kernel"
    shape, dtype = (16,), "float32"

    def __init__(self) -> None:
        self._value = jnp.ones(16)


class Model:
    """As Keras keeps a model."""

    def __init__(self) -> None:
        self.variables = [Variable()]

    def fit_one(self, x: Any) -> Any:
        self.variables[0]._value = self.variables[0]._value + x.sum(0)
        return x.sum()


@pytest.fixture
def keras_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", sys.modules.get("keras") or types.ModuleType("keras"))
    for kind in (Variable, Model):
        monkeypatch.setattr(kind, "__module__", "keras.src")


def test_a_model_is_no_argument(keras_stand_in: None) -> None:
    step = rhino.parallelize(lambda state, x: x)
    for state, name in ((Model(), "state is a Model"), ([Variable()], r"state\[0\] is a Variable")):
        with pytest.raises(rhino.RhinoError, match=f"{name}.*parallelize model.train_step"):
            step(state, X)


def test_assigning_to_a_model_that_is_no_argument_is_refused(keras_stand_in: None) -> None:
    model = Model()
    holds = {"models": [model]}
    for fn in (model.fit_one, lambda x: model.fit_one(x), lambda x: holds["models"][0].fit_one(x)):
        message = "assigns to dense/kernel of a Model it was not given.*model.train_function = lambda"
        with pytest.raises(rhino.RhinoError, match=message):
            rhino.parallelize(fn)(X)
        np.testing.assert_array_equal(model.variables[0]._value, np.ones(16))  # not a tracer
    assert rhino.parallelize(lambda x: x.sum() + model.variables[0]._value.sum())(X).shape == ()


class Module:
    """In the manner of torchax's JittableModule: `buffers` is its own dictionary, and hides torch's method."""

    def __init__(self) -> None:
        self.weight = type("Tensor", (), {"_elem": np.ones(16), "name": "weight"})()
        self.buffers = {}  # type: ignore[assignment]

    def parameters(self) -> list[Any]:
        return [self.weight]

    def buffers(self) -> list[Any]:  # type: ignore[no-redef]
        return []


def test_a_module_may_hide_torchs_own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchax", sys.modules.get("torchax") or types.ModuleType("torchax"))
    monkeypatch.setattr(Module, "__module__", "torchax.interop")
    module = Module()

    def step(x: Any) -> Any:
        return (x * module.weight._elem).sum()

    np.testing.assert_allclose(rhino.parallelize(step)(X[0]), X[0].sum(), rtol=1e-5)


# --- the libraries themselves ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_keras_fits_with_a_parallelized_step() -> None:
    os.environ["KERAS_BACKEND"] = "jax"
    keras = pytest.importorskip("keras")

    def fit(parallel: bool) -> tuple[Any, Any]:
        keras.utils.set_random_seed(0)
        layers = keras.layers
        model = keras.Sequential([layers.Dense(64, "relu"), layers.BatchNormalization(), layers.Dropout(0.1)])
        model.add(layers.Dense(16))
        model.compile(keras.optimizers.Adam(1e-2), loss="mse", metrics=["mae"])
        if parallel:
            step = rhino.parallelize(model.train_step, donate_argnums=0)
            model.train_function = lambda state, iterator: step(state, next(iterator))
        rows = np.tile(X, (6, 1))[:150]  # the last batch is smaller
        history = model.fit(rows, rows, batch_size=64, epochs=2, verbose=0, validation_data=(X, X), shuffle=False)
        return history.history, model.predict(X, verbose=0)

    (history, out), (expected, wanted) = fit(True), fit(False)
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4)
    np.testing.assert_allclose(out, wanted, rtol=1e-3, atol=1e-4)

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
    model.compile("sgd", loss="mse")
    with pytest.raises(rhino.RhinoError, match=r"assigns to .*dense.*/kernel of a Sequential it was not given"):
        rhino.parallelize(lambda x: model.train_on_batch(x, x))(X)
    with pytest.raises(rhino.RhinoError, match="model is a Sequential, which is no array"):
        rhino.parallelize(lambda model, x: model(x))(model, X)


@pytest.mark.long
def test_torchax_train_steps() -> None:
    torch = pytest.importorskip("torch")
    torchax, interop = pytest.importorskip("torchax"), pytest.importorskip("torchax.interop")
    make_train_step = pytest.importorskip("torchax.train").make_train_step

    def losses(jit: Any) -> list[float]:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16)).to("jax")
        weights, buffers = dict(module.named_parameters()), dict(module.named_buffers())
        tx = optax.adam(1e-2)

        def forward(weights: Any, buffers: Any, x: Any) -> Any:
            return torch.func.functional_call(module, (weights, buffers), x)

        step = make_train_step(forward, lambda out, x: torch.mean((out - x) ** 2), tx)
        step, state, found = jit(step), interop.call_jax(tx.init, weights), []
        x = torch.tensor(X).to("jax")
        for _ in range(3):
            loss, weights, state = step(weights, buffers, state, (x,), x)
            found.append(loss.item())
        return found

    with torchax.default_env():
        options = {"donate_argnums": (0, 2)}
        wrapped = losses(lambda step: interop.wrap_jax_jit(step, rhino.parallelize, options))
        np.testing.assert_allclose(wrapped, losses(lambda step: interop.jax_jit(step, options)), rtol=1e-5)
        with pytest.raises(
            rhino.RhinoError, match=r"weights\['0.bias'\] is a Tensor.*wrap_jax_jit\(step, jax_jit_func"
        ):
            losses(rhino.parallelize)
        module = torch.nn.Linear(16, 16).to("jax")

        def decay(x: Any) -> Any:
            with torch.no_grad():
                module.weight.mul_(0.9)
            return module(x).sum()

        with pytest.raises(rhino.RhinoError, match=r"of a Linear it was not given.*make_train_step"):
            interop.wrap_jax_jit(decay, rhino.parallelize)(torch.tensor(X).to("jax"))
        assert not isinstance(module.weight._elem, jax.core.Tracer)
