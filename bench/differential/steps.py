"""Random training steps, run as pipelines of 2 to 4 stages, against `jax.jit` of the step.

Owns what such a step is made of: blocks, a loss, an optimizer. All its functions are smooth, and its optimizers' steps
too, so that rounding stays rounding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import rhino
from bench.differential.clusters import cluster_of
from bench.differential.trial import Outcome, is_internal
from rhino.errors import RhinoError

# Stages and devices.
PLACES = ("2-of-8", "3-of-6", "4-of-8")
_STEPS = 2
_TOLERANCE = 5e-3
BLOCKS = ("dense", "residual", "norm", "gated", "attention", "convolution", "mixed", "scan", "remat", "low", "frozen")
LOSSES = ("squares", "classes", "sum", "weighted")
OPTIMIZERS = ("sgd", "momentum", "adam", "clipped", "decay")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a step is made of. `embed`: the batch is whole numbers, looked up in the table that makes the logits too."""

    blocks: tuple[str, ...]
    loss: str
    optimizer: str
    embed: bool
    width: int
    length: int
    batch: int
    microbatches: int
    metrics: bool


@st.composite
def recipes(draw: Any) -> Recipe:
    """One of them."""
    return Recipe(
        blocks=tuple(draw(st.lists(st.sampled_from(BLOCKS), min_size=3, max_size=7))),
        loss=draw(st.sampled_from(LOSSES)),
        optimizer=draw(st.sampled_from(OPTIMIZERS)),
        embed=draw(st.booleans()),
        width=draw(st.sampled_from((8, 12, 16))),
        length=draw(st.sampled_from((4, 6))),
        batch=draw(st.sampled_from((8, 16, 24))),
        microbatches=draw(st.sampled_from((2, 4, 8))),
        metrics=draw(st.booleans()),
    )


def of_seed(number: int) -> Recipe:
    """The same recipe for the same number, with the same version of hypothesis."""
    found: list[Recipe] = []

    @seed(number)
    @settings(
        max_examples=3,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(recipes())
    def collect(recipe: Recipe) -> None:
        found.append(recipe)

    collect()
    return found[-1]


def _weights(block: str, width: int, draw: Callable[..., Any]) -> Any:
    """Parameters of a block."""
    if block == "norm":
        return {"scale": 1 + draw(width), "shift": draw(width)}
    if block in ("gated", "mixed"):
        return {"up": draw(width, 2 * width), "gate": draw(width, 2 * width), "down": draw(2 * width, width)}
    if block == "attention":
        return {"qkv": draw(3, width, width), "out": draw(width, width)}
    if block == "convolution":
        return {"kernel": draw(3, width, width)}
    if block == "scan":
        return {"layers": draw(3, width, width)}
    return {"w": draw(width, width), "b": draw(width)}


def _apply(block: str, p: Any, x: Any) -> Any:
    """A block on [batch, length, width]."""
    if block == "dense":
        return jnp.tanh(x @ p["w"] + p["b"])
    if block == "residual":
        return x + jax.nn.gelu(x @ p["w"] + p["b"])
    if block == "norm":
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-2) * p["scale"] + p["shift"]
    if block == "gated":
        return x + (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]
    if block == "mixed":
        y = x.astype(jnp.bfloat16).astype(jnp.float32)
        return x + (jax.nn.sigmoid(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
    if block == "attention":
        q, k, v = jnp.einsum("btd,ndk->nbtk", x, p["qkv"])
        scores = jax.nn.softmax(jnp.einsum("btk,bsk->bts", q, k) / x.shape[-1] ** 0.5, axis=-1)
        return x + jnp.einsum("bts,bsk->btk", scores, v) @ p["out"]
    if block == "convolution":
        numbers = ("NWC", "WIO", "NWC")
        return jnp.tanh(jax.lax.conv_general_dilated(x, p["kernel"], (1,), "SAME", dimension_numbers=numbers))
    if block == "scan":
        return jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, p["layers"])[0]
    if block == "remat":
        return jax.checkpoint(lambda x: x + jnp.tanh(jnp.sin(x @ p["w"]) + p["b"]))(x)
    if block == "low":
        return x + (jnp.cos(x @ p["w"]).reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape) * p["b"])
    return jax.lax.stop_gradient(x @ p["w"] * 0.1) + x  # frozen: its weights have no gradient


def _loss(kind: str, out: Any, batch: Any) -> Any:
    if kind == "classes":
        logits = jax.nn.log_softmax(out, -1)
        return -jnp.take_along_axis(logits, batch["y"][..., None], -1).mean()
    target = jax.nn.one_hot(batch["y"], out.shape[-1])
    if kind == "squares":
        return ((out - target) ** 2).mean()
    if kind == "sum":
        return 1e-2 * ((out - target) ** 2).sum()
    weights = batch["weight"][:, None, None]
    return (weights * (out - target) ** 2).sum() / weights.sum()


def _optimizer(name: str) -> Any:
    found = {
        "sgd": optax.sgd(0.1),
        "momentum": optax.sgd(0.05, momentum=0.9, nesterov=True),
        "adam": optax.adam(1e-2, eps=1e-3),
        "clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2, eps=1e-3)),
        "decay": optax.adamw(optax.cosine_decay_schedule(1e-2, 10), eps=1e-3, weight_decay=0.1),
    }
    return found[name]


def make(recipe: Recipe) -> tuple[Callable[..., Any], Any, list[Any]]:
    """The step, its state, and batches for two calls."""
    random = np.random.default_rng(0)
    width = recipe.width

    def draw(*shape: int) -> Any:
        return jnp.asarray(random.standard_normal(shape) / max(width, 4) ** 0.5, jnp.float32)

    params = {f"block{i}": _weights(b, width, draw) for i, b in enumerate(recipe.blocks)}
    params["head"] = draw(width, width)
    if recipe.embed:
        params["table"] = draw(width, width)
    tx = _optimizer(recipe.optimizer)

    def forward(params: Any, batch: Any) -> Any:
        x = params["table"][batch["x"]] if recipe.embed else batch["x"]
        for i, block in enumerate(recipe.blocks):
            x = _apply(block, params[f"block{i}"], x)
        return x @ (params["table"].T if recipe.embed else params["head"])

    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return _loss(recipe.loss, forward(params, batch), batch)

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        updates, moments = tx.update(grads, state["moments"], state["params"])
        new = {"params": optax.apply_updates(state["params"], updates), "moments": moments, "step": state["step"] + 1}
        return new, {"loss": loss, "norm": optax.global_norm(grads)} if recipe.metrics else loss

    shape = (recipe.batch, recipe.length)
    batches = []
    for _ in range(_STEPS):
        x = random.integers(0, width, shape) if recipe.embed else random.standard_normal((*shape, width))
        batches.append(
            {
                "x": np.asarray(x, np.int32 if recipe.embed else np.float32),
                "y": np.asarray(random.integers(0, width, shape), np.int32),
                "weight": np.asarray(random.uniform(0.5, 1.5, recipe.batch), np.float32),
            }
        )
    state = {"params": params, "moments": tx.init(params), "step": jnp.zeros((), jnp.int32)}
    return step, state, batches


def attempt(recipe: Recipe, place: str) -> Outcome:
    """The step as a pipeline. Lets nothing out but what is no Exception."""
    stages, devices = map(int, place.split("-of-"))
    with jax.enable_x64(False):
        step, state, batches = make(recipe)
        expected, metrics = state, []
        jitted = jax.jit(step)
        for batch in batches:
            expected, measured = jitted(expected, batch)
            metrics.append(measured)
        try:
            cluster = cluster_of(devices)
            piped = rhino.parallelize(
                step, cluster=cluster, stages=stages, microbatches=recipe.microbatches, donate_argnums=(0,)
            )
            found, measured = jax.tree.map(jnp.array, state), []
            for batch in batches:
                found, one = piped(found, batch)
                measured.append(jax.tree.map(np.asarray, one))
            got = jax.tree.leaves((jax.tree.map(np.asarray, found), measured))
        except RhinoError as error:
            text = " ".join(str(error).split())[:400]
            located = re.search(r"\.py:\d+", text) is not None and not is_internal(text)
            return Outcome("refused" if located else "unlocated", f"{text} [{recipe}]")
        except Exception as error:  # whatever it is, it is what this looks for
            first = (str(error).splitlines() or [""])[0][:300]
            return Outcome("failed", f"{type(error).__name__}: {first} [{recipe}]")
        for index, (a, b) in enumerate(zip(got, jax.tree.leaves((expected, metrics)), strict=True)):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            limit = _TOLERANCE * max(float(np.abs(b).max(initial=0.0)), 1e-2)
            if a.shape != b.shape or not (np.abs(a - b) <= limit).all():
                return Outcome("wrong", f"leaf {index} off by {np.abs(a - b).max():.3g}, not {limit:.3g} [{recipe}]")
    return Outcome("right", "", stages)
