"""The models whose state these tests save, the plans they run under, and what "the same state" means: every bit."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import yaml

import rhino
from examples.models import gpt

BATCH = 8
_SLOW = Path(__file__).parents[1] / "exec/slow_devices.yaml"


OPTIMIZER = optax.adam(1e-2, eps=1e-3)


def init_gated(key: jax.Array) -> dict[str, Any]:
    """Four gated layers, stacked; gate and up are one matrix. `step` is a number of Python, which jax types weakly."""
    keys = jax.random.split(key)
    layers = {
        "up": jax.random.normal(keys[0], (4, 16, 64)) / 4,
        "down": jax.random.normal(keys[1], (4, 32, 16)) / 6,
    }
    return {"layers": layers, "opt": OPTIMIZER.init(layers), "step": 0}


def train_gated(state: dict[str, Any], x: Any) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """One step of Adam towards the identity."""

    def layer(x: Any, params: Any) -> tuple[Any, None]:
        gate, up = jnp.split(x @ params["up"], 2, axis=-1)
        return x + (jax.nn.silu(gate) * up) @ params["down"], None

    def loss_of(layers: Any) -> jax.Array:
        return jnp.mean((jax.lax.scan(layer, x, layers)[0] - x) ** 2)

    loss, grads = jax.value_and_grad(loss_of)(state["layers"])
    updates, opt = OPTIMIZER.update(grads, state["opt"])
    layers = optax.apply_updates(state["layers"], updates)
    return {"layers": layers, "opt": opt, "step": state["step"] + 1}, {"loss": loss}


def gated() -> tuple[Any, Any, Any]:
    """`init`, `train_step` and a batch of the gated layers."""
    return init_gated, train_gated, np.random.default_rng(0).standard_normal((BATCH, 16), dtype=np.float32)


@cache
def fused_gpt(scan: bool) -> tuple[Any, Any, Any]:
    """`init`, `train_step` and a batch of a tiny GPT whose queries, keys and values are one matrix."""
    config = dataclasses.replace(
        gpt.PRESETS["tiny"], layers=4, width=32, heads=4, vocab=64, seq_len=16, scan=scan, fused=True
    )
    return (*gpt.make_train_step(config), gpt.example_batch(config, BATCH))


def cluster(folder: Path, devices: int) -> str:
    """A file of a cluster of so many devices of this process."""
    file = folder / f"{devices}.yaml"
    text = {**yaml.safe_load(_SLOW.read_text()), "name": f"slow-{devices}", "devices_per_host": devices}
    file.write_text(yaml.safe_dump(text))
    return str(file)


def planned(model: tuple[Any, Any, Any], where: str, **options: Any) -> Any:
    """A step with a plan for a cluster."""
    init, train_step, batch = model
    step = rhino.parallelize(train_step, cluster=where, donate_argnums=(0,), **options)
    step.plan(jax.eval_shape(init, jax.random.key(0)), batch)
    return step


def train(step: Any, state: Any, batch: Any, steps: int) -> tuple[Any, list[float]]:
    losses = []
    for _ in range(steps):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return state, losses


def assert_same_bits(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if isinstance(a, jax.Array) and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            assert a.dtype == b.dtype
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
