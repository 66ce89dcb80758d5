"""rhino-expose-strided-dims on programs as jax lowers them: what is stored split, and that results stay the same.

StableHLO's interpreter runs both modules: XLA is not asked.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from strided_programs import FUSED, Layer, lowered, qkv, train_step, values

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoStrided
from rhino.dialect.locations import argument_name
from rhino.passes.pass_manager import PassManager

SGD = optax.sgd(0.1, momentum=0.9)


def stored(module: ir.Module) -> dict[str, list[int]]:
    """The shapes of the arguments stored split, by name."""
    main = functions.find(module, "main")
    assert main is not None
    arguments = zip(main.regions[0].blocks[0].arguments, functions.argument_attributes(main), strict=True)
    return {
        argument_name(value, i): list(value.type.shape)
        for i, (value, given) in enumerate(arguments)
        if RhinoStrided.name in given
    }


def interpreted(module: ir.Module, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The results for arguments in any shape of the right size."""
    main = functions.find(module, "main")
    assert main is not None
    shapes = [tuple(kind.shape) for kind in main.attributes["function_type"].value.inputs]
    with module.context:
        given = [ir.DenseElementsAttr.get(np.reshape(a, s)) for a, s in zip(arguments, shapes, strict=True)]
        return [np.array(out) for out in stablehlo.eval_module(module, given)]


def check_same(step: Any, arguments: tuple[Any, ...]) -> ir.Module:
    """Assert that the step gives what it gave before, in reshaped state; returns the rewritten module."""
    before, after = (lowered(step, arguments, expose) for expose in (False, True))
    given = values(before)
    for want, got in zip(interpreted(before, given), interpreted(after, given), strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-6)
    return after


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("name", FUSED)
def test_a_training_step_gives_the_same(name: str, scan: bool) -> None:
    after = check_same(*train_step(FUSED[name], 8, batch=2, time=3, layers=2, scan=scan, optimizer=SGD))
    # Parameters and their momentum, and nothing else, in every layer.
    layers, names = 1 if scan else 2, [n for n in FUSED[name].shapes(8) if n not in ("o", "q")]
    assert len(stored(after)) == 2 * layers * len(names)


def test_what_is_stored() -> None:
    step, arguments = train_step(FUSED["lstm concatenated"], 8, layers=1)
    shapes = {key.rsplit("[", 1)[1]: shape for key, shape in stored(lowered(step, arguments, True)).items()}
    assert shapes == {"'b']": [4, 8], "'w']": [2, 8, 4, 8]}


def test_all_of_adam_is_stored_alike() -> None:
    names = stored(lowered(*train_step(qkv(), 8, layers=1), expose=True))
    trees = ("state[0][0]", "state[1][1][0].mu[0]", "state[1][1][0].nu[0]")
    assert names == {f"{tree}['{leaf}']": shape for tree in trees for leaf, shape in (("b", [3, 8]), ("w", [8, 3, 8]))}


def test_compute_in_bfloat16_with_parameters_in_float32() -> None:
    def block(p: Any, x: jax.Array) -> jax.Array:
        return qkv().block(jax.tree.map(lambda a: a.astype(jnp.bfloat16), p), x.astype(jnp.bfloat16)).astype(x.dtype)

    step, arguments = train_step(Layer(qkv().shapes, block), 8, layers=1)
    assert len(stored(lowered(step, arguments, True))) == 6


def test_both_directions_of_a_recurrent_net_feed_the_next_layer() -> None:
    cell = FUSED["lstm"]

    def block(p: Any, x: jax.Array) -> jax.Array:
        back = {name.removeprefix("back_"): value for name, value in p.items() if name.startswith("back_")}
        both = jnp.concatenate([cell.block(p, x), cell.block(back, x[:, ::-1])[:, ::-1]], axis=-1)
        return both @ p["o"]

    def shapes(h: int) -> dict[str, tuple[int, ...]]:
        one = cell.shapes(h)
        return one | {f"back_{name}": shape for name, shape in one.items()} | {"o": (2 * h, h)}

    after = check_same(*train_step(Layer(shapes, block), 8, batch=2, time=3, layers=1, optimizer=optax.sgd(0.1)))
    assert {tuple(shape) for shape in stored(after).values()} == {(8, 4, 8), (4, 8), (2, 8, 8)}


def test_a_factored_second_moment_follows() -> None:
    optimizer = optax.adafactor(1e-3, min_dim_size_to_factor=8)
    after = check_same(*train_step(qkv(), 8, batch=2, time=3, layers=1, optimizer=optimizer))
    assert [3, 8] in [shape for name, shape in stored(after).items() if "v_col" in name or "v_row" in name]


@pytest.mark.parametrize("name", ["qkv by_split", "lstm concatenated"])
def test_nothing_is_left_for_a_second_run(name: str) -> None:
    module = lowered(*train_step(FUSED[name], 8), expose=True)
    once = str(module)
    PassManager(module.context).add("rhino-expose-strided-dims").run(module)
    assert str(module) == once


# One after the other on y of (2, 3, n * c), each keeping its shape, whatever the dimension that is split is part of.
STEPS = {
    "scale": lambda y, n: y * 1.5 + 0.1,
    "transposed": lambda y, n: jnp.tanh(y.T).T,
    "flattened": lambda y, n: jnp.sin(y.reshape(6, -1)).reshape(y.shape),
    "normalised": lambda y, n: y / (1 + jnp.abs(y).sum(-1, keepdims=True)),
    "gated": lambda y, n: y * jax.nn.sigmoid(y.mean((0, 1))),
    "stacked": lambda y, n: jnp.stack([y, -y])[1],
    "by position": lambda y, n: y * jnp.arange(y.shape[-1], dtype=y.dtype),
    "reversed time": lambda y, n: y[:, ::-1],
    "cumulative": lambda y, n: jnp.cumsum(y, axis=1),
    "looked up": lambda y, n: y[jnp.array([1, 0])],
    "sorted in time": lambda y, n: jnp.sort(y, axis=1),
    "in heads": lambda y, n: jax.nn.softmax(y.reshape(2, 3, n, 2, -1), axis=-1).reshape(y.shape),
    "rejoined": lambda y, n: jnp.concatenate(jnp.split(y, n, axis=-1)[::-1], axis=-1),
    "looped": lambda y, n: jax.lax.fori_loop(0, 2, lambda _, z: jnp.cos(z), y),
    "written": lambda y, n: jax.lax.dynamic_update_slice_in_dim(y, 2 * y[..., -(y.shape[-1] // n) :], 0, axis=2),
    "sorted": lambda y, n: jnp.sort(y, axis=-1),
    "shifted": lambda y, n: jnp.roll(y, 1, axis=-1),
}


NEED_WHOLE = ("sorted", "shifted")


def chain(names: list[str], n: int, c: int) -> ir.Module:
    """The rewritten training step of a projection, some steps, and a split, after checking what it computes."""

    def block(p: Any, x: jax.Array) -> jax.Array:
        y = x @ p["w"] + p["b"]
        for name in names:
            y = STEPS[name](y, n)
        parts = jnp.split(y, n, axis=-1)
        return sum(jnp.sin((i + 1) * part) for i, part in enumerate(parts)) @ p["o"]

    layer = Layer(lambda h: {"w": (h, n * c), "b": (n * c,), "o": (c, h)}, block)
    return check_same(*train_step(layer, 4, batch=2, time=3, layers=1, optimizer=optax.sgd(0.1)))


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=4), st.sampled_from([2, 3, 4]), st.sampled_from([2, 4]))
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_chains_of_operations_give_the_same(names: list[str], n: int, c: int) -> None:
    after = chain(names, n, c)
    # What was cut and rejoined before it is sorted is split up to there.
    assert stored(after) or not set(NEED_WHOLE).isdisjoint(names)


@pytest.mark.parametrize("name", NEED_WHOLE)
def test_what_needs_the_dimension_whole_keeps_it(name: str) -> None:
    assert not stored(chain([name], 3, 4))
