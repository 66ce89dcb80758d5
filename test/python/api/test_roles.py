"""Roles of the arguments of training steps as their users write them: what is donated and how state is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState

import rhino
from rhino.api.trace import import_module, trace
from rhino.dialect import functions
from rhino.passes.pass_manager import PassManager

# As large as the batch: sizes say nothing.
SIZE, LAYERS = 8, 3
PARAMS = {f"w{i}": np.ones((SIZE, SIZE), np.float32) for i in range(LAYERS)} | {"b": np.ones(SIZE, np.float32)}
BATCH = {name: np.ones((SIZE, SIZE), np.float32) for name in "xy"}
ADAM = optax.adam(1e-2)
OPT = ADAM.init(PARAMS)


def predict(params: Any, x: Any) -> Any:
    for i in range(LAYERS):
        x = jnp.tanh(x @ params[f"w{i}"] + params["b"])
    return x


def loss_of(params: Any, batch: Any) -> Any:
    return ((predict(params, batch["x"]) - batch["y"]) ** 2).mean()


def train(params: Any, opt: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    updates, opt = ADAM.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss


def with_average(params: Any, opt: Any, average: Any, batch: Any) -> Any:
    params, opt, loss = train(params, opt, batch)
    return params, opt, jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, params), loss


def with_statistics(params: Any, means: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        h, made = batch["x"], []
        for i in range(LAYERS):
            h = h @ params[f"w{i}"]
            made.append(0.9 * means[i] + 0.1 * h.mean(0))
            h = jnp.tanh(h - h.mean(0) + params["b"])
        return ((h - batch["y"]) ** 2).mean(), made

    (value, made), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), made, value


def with_train_state(state: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(state.params, batch)
    return state.apply_gradients(grads=grads), {"loss": loss, "seen": 2 * batch["x"]}


def as_dict(state: Any, batch: Any) -> Any:
    params, opt, loss = train(state["params"], state["opt"], batch)
    return {"metrics": {"loss": loss}, "state": {"params": params, "opt": opt}}


def accumulate(params: Any, sums: Any, batch: Any) -> Any:
    loss, grads = jax.value_and_grad(loss_of)(params, batch)
    return loss, jax.tree.map(jnp.add, sums, grads)


def only_params(params: Any, opt: Any, batch: Any) -> Any:
    return train(params, opt, batch)[0]


STATE = TrainState.create(apply_fn=predict, params=PARAMS, tx=ADAM)
TRAIN = (train, (PARAMS, OPT, BATCH), {"params": "param", "opt": "opt_state", "batch": "batch"})
STEPS: dict[str, tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, str]], tuple[int, ...]]] = {
    "nothing donated": (TRAIN, ()),
    "parameters donated": (TRAIN, (0,)),
    "optimizer donated": (TRAIN, (1,)),
    "batch donated": (TRAIN, (2,)),
    "all donated": (TRAIN, (0, 1, 2)),
    "no loss": ((lambda params, opt, batch: train(params, opt, batch)[:2], *TRAIN[1:]), (0,)),
    "average": (
        (with_average, (PARAMS, OPT, PARAMS, BATCH), {**TRAIN[2], "average": "opt_state"}), (0,),
    ),
    "statistics": (
        (with_statistics, (PARAMS, [np.zeros(SIZE, np.float32)] * LAYERS, BATCH), {**TRAIN[2], "means": "opt_state"}),
        (0,),
    ),
    "TrainState": (
        (with_train_state, (STATE, BATCH),
         {"state.params": "param", "state.opt_state": "opt_state", "state.step": "opt_state", "batch": "batch"}), (),
    ),
    "dictionary": (
        (as_dict, ({"params": PARAMS, "opt": OPT}, BATCH),
         {"state['params']": "param", "state['opt']": "opt_state", "batch": "batch"}), (),
    ),
    "sums of gradients": (
        (accumulate, (PARAMS, PARAMS, BATCH), {"params": "param", "sums": "opt_state", "batch": "batch"}), (),
    ),
    "inference": (
        (lambda params, x: x + predict(params, x), (PARAMS, BATCH["x"]), {"params": "param", "x": "batch"}), (1,),
    ),
}  # fmt: skip


def roles_of(step: Callable[..., Any], args: tuple[Any, ...], donated: tuple[int, ...]) -> dict[str, str]:
    signature = rhino.parallelize(step, donate_argnums=donated)._signature
    module = import_module(trace(step, signature, signature.bind(args, {})))
    PassManager(module.context).add("rhino-classify-args").run(module)
    given = functions.argument_attributes(functions.find(module, "main"))
    return {g["rhino.name"].value: g["rhino.role"].value for g in given}


@pytest.mark.parametrize("name", STEPS)
def test_roles_are_those_of_trees(name: str) -> None:
    (step, args, wanted), donated = STEPS[name]
    for argument, role in roles_of(step, args, donated).items():
        assert role == next(r for start, r in wanted.items() if argument.startswith(start)), argument
