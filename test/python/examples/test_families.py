"""The model families: published sizes, training, and the equivalence of their forms."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.models import MODELS, gpt, llama, moe, unet

# The LSTM is written in Equinox, which not everybody has.
AVAILABLE = [name for name in MODELS if name != "lstm" or importlib.util.find_spec("equinox")]
FAMILIES = [name for name in AVAILABLE if name not in ("gpt", "mlp", "convnet")]  # those three: test_models.py
SCANNED = [name for name in AVAILABLE if name not in ("mlp", "convnet", "unet", "dlrm")]
# Compiling takes nearly all the time of these tests, and the speed of what it makes does not matter.
FAST_COMPILE = {"xla_backend_optimization_level": 0}

# Millions of parameters as published: the numbers of the released checkpoints where there are any.
PUBLISHED = {
    "gpt": {"350m": 350, "1.3b": 1300, "2.6b": 2600, "6.7b": 6700, "15b": 15e3, "39b": 39e3, "175b": 175e3},
    "llama": {"llama2-7b": 6738.415616, "llama3-8b": 8030.261248, "llama2-70b": 68976.648192},
    "moe": {"380m": 380, "690m": 690, "1.3b": 1300, "2.4b": 2400, "10b": 10e3, "27b": 27e3, "70b": 70e3},
    "bert": {"base": 109.514298, "large": 335.174458},
    "t5": {"small": 60.506624, "base": 222.903552, "large": 737.668096, "3b": 2851.598336},
    "vit": {"b16": 86.567656, "l16": 304.326632, "h14": 632.0458},
    "clip": {"b16": 149.620737, "l14": 427.616513},
    "wide_resnet": {"250m": 250, "500m": 500, "1b": 1e3, "2b": 2e3, "4b": 4e3, "6.8b": 6.8e3, "13b": 13e3},
    "unet": {"adm-64": 296, "adm-256": 554},
    "dlrm": {"kaggle": 540, "mlperf": 26e3},
    "lstm": {"250m": 250, "2048-512": 830, "big": 1800},
}


# What takes longest to compile, by family: CI has the others.
_LARGE = ("bert", "clip", "moe", "sparse_llama", "t5", "unet", "vit", "wide_resnet")


def some(names: Iterable[str]) -> list[Any]:
    """Families as parameters, the large ones marked `long`."""
    return [pytest.param(name, marks=[pytest.mark.long] * (name in _LARGE)) for name in names]


def model(name: str) -> ModuleType:
    return importlib.import_module(f"examples.models.{name}")


def count_params(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def compiled(function: Any, *args: Any) -> Any:
    return jax.jit(lambda *a: function(*a)).lower(*args).compile(compiler_options=FAST_COMPILE)


@functools.cache
def initial_state(name: str, **changes: Any) -> Any:
    """The state of the tiny model, with `changes`."""
    config = dataclasses.replace(model(name).PRESETS["tiny"], **changes)
    # This generator takes the least time to compile.
    init_fn, key = model(name).make_train_step(config)[0], jax.random.key(0, impl="unsafe_rbg")
    return compiled(init_fn, key)(key)


def loss(name: str, config: Any, state: Any, batch_size: int = 4) -> float:
    train_step, batch = model(name).make_train_step(config)[1], model(name).example_batch(config, batch_size)
    return float(compiled(lambda s, b: train_step(s, b)[1]["loss"], state, batch)(state, batch))


def with_params(name: str, config: Any, **parts: Any) -> Any:
    """A state of `config` that is zero but for `parts`: enough to compute a loss."""
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), model(name).abstract_inputs(config, 4)[0])
    return state.replace(**parts) if hasattr(state, "replace") else state._replace(**parts)


@pytest.mark.parametrize(("name", "preset"), [(name, preset) for name in FAMILIES for preset in model(name).PRESETS])
def test_closed_form_parameter_count_is_that_of_the_model(name: str, preset: str) -> None:
    config = model(name).PRESETS[preset]
    if name in SCANNED and preset != "tiny":
        config = dataclasses.replace(config, scan=True)  # traces faster; a test below says that it is the same model
    assert config.num_params() == count_params(model(name).abstract_inputs(config, 2)[0].params)


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() & set(AVAILABLE)))
def test_sizes_are_the_published_ones(name: str) -> None:
    for preset, millions in PUBLISHED[name].items():
        count = model(name).PRESETS[preset].num_params()
        exact = millions != int(millions)
        assert count == pytest.approx(millions * 1e6, rel=1e-9 if exact else 0.05), preset


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_preset_has_a_batch(name: str) -> None:
    assert model(name).BATCH.keys() == model(name).PRESETS.keys()
    assert all(size > 0 for size in model(name).BATCH.values())


@pytest.mark.parametrize("name", some(FAMILIES))
def test_training_reduces_the_loss(name: str) -> None:
    # The scanned form compiles faster, and a test below says that it is the same model.
    changes = {"scan": True} if name in SCANNED else {}
    config = dataclasses.replace(model(name).PRESETS["tiny"], **changes)
    state, batch = initial_state(name, **changes), model(name).example_batch(config, 8)
    step = compiled(model(name).make_train_step(config)[1], state, batch)
    losses = []
    for _ in range(25):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.7 * losses[0], losses
    assert int(state.step) == 25


@pytest.mark.parametrize("name", some(FAMILIES))
def test_abstract_inputs_are_shapes_of_the_concrete_ones(name: str) -> None:
    config = model(name).PRESETS["tiny"]
    state, batch = model(name).abstract_inputs(config, 4)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves((state, batch)))

    def describe(tree: Any) -> list[tuple[str, tuple[int, ...], str]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return [(jax.tree_util.keystr(path), jnp.shape(leaf), str(jnp.result_type(leaf))) for path, leaf in leaves]

    assert describe(batch) == describe(model(name).example_batch(config, 4))
    # What a step returns can be given to the next one.
    after, _ = jax.eval_shape(model(name).make_train_step(config)[1], state, batch)
    assert describe(after) == describe(state)


@pytest.mark.parametrize("name", some(FAMILIES))
def test_bfloat16_is_for_computing_alone(name: str) -> None:
    config = dataclasses.replace(model(name).PRESETS["tiny"], dtype="bfloat16")
    train_step = model(name).make_train_step(config)[1]
    state, batch = model(name).abstract_inputs(config, 4)
    traced = jax.jit(train_step).trace(state, batch)
    for leaf in jax.tree.leaves(traced.out_info):
        assert leaf.dtype in (jnp.float32, jnp.int32)
    assert "bf16" in str(traced.jaxpr)


@pytest.mark.parametrize("name", some(sorted(set(FAMILIES) - {"dlrm"})))
def test_remat_recomputes(name: str) -> None:
    def barriers(remat: bool) -> int:
        config = dataclasses.replace(model(name).PRESETS["tiny"], remat=remat)
        train_step = model(name).make_train_step(config)[1]
        lowered = jax.jit(train_step).lower(*model(name).abstract_inputs(config, 4))
        return lowered.as_text().count("stablehlo.optimization_barrier")

    # A barrier keeps what is computed again from being merged with the first time.
    assert barriers(remat=True) > barriers(remat=False) == 0


@pytest.mark.parametrize("name", some(sorted(set(SCANNED) - {"gpt"})))
def test_scanned_layers_agree_with_unrolled_ones(name: str) -> None:
    module, config = model(name), model(name).PRESETS["tiny"]
    scanned, state = dataclasses.replace(config, scan=True), initial_state(name)
    parts = {"params": module.stack_layers(state.params, config)}
    if name == "wide_resnet":
        parts["batch_stats"] = module.stack_layers(state.batch_stats, config)
    stacked = with_params(name, scanned, **parts)
    expected = module.abstract_inputs(scanned, 4)[0].params
    assert jax.tree.structure(stacked.params) == jax.tree.structure(expected)
    assert jax.tree.map(jnp.shape, stacked.params) == jax.tree.map(jnp.shape, expected)
    np.testing.assert_allclose(loss(name, scanned, stacked), loss(name, config, state), rtol=2e-6)


def test_sorting_tokens_agrees_with_one_hot_dispatch() -> None:
    key = jax.random.key(0)
    x = jax.random.normal(key, (2, 32, 8))
    # Uneven gates: experts 0 and 1 get more tokens than they take, so some are dropped.
    gates = jax.nn.softmax(jax.random.normal(key, (2, 32, 4)) + jnp.array([2.0, 1.0, 0.0, -1.0]))
    scale = jnp.arange(1.0, 5.0)[:, None, None, None]

    def both(x: jax.Array, gates: jax.Array) -> tuple[jax.Array, ...]:
        by_einsum = moe.dispatch_by_einsum(x, gates, 8, lambda tokens: tokens * scale)
        by_sort = moe.dispatch_by_sort(x, gates, 8, lambda tokens: tokens * scale)
        return by_einsum, by_sort, moe.dispatch_by_sort(x, gates, 64, lambda tokens: tokens)

    by_einsum, by_sort, everything = compiled(both, x, gates)(x, gates)
    np.testing.assert_allclose(by_sort, by_einsum, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(everything, x, rtol=1e-5)  # weights add up to 1, and nobody is dropped
    assert (jnp.abs(by_einsum).sum(axis=-1) == 0).any(), "a token that two full experts refuse passes by"


def test_ragged_products_agree_with_sorting_where_nobody_is_dropped() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    x, gates = jax.random.normal(keys[0], (2, 32, 8)), jax.nn.softmax(2 * jax.random.normal(keys[1], (2, 32, 4)))
    up, down = jax.random.normal(keys[2], (4, 8, 16)), jax.random.normal(keys[3], (4, 16, 8))

    def run(tokens: jax.Array) -> jax.Array:
        return jnp.einsum("egch,ehm->egcm", jax.nn.relu(jnp.einsum("egcm,emh->egch", tokens, up)), down)

    def losses(x: jax.Array, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
        by_sort = moe.dispatch_by_sort(x, gates, 64, run)
        return by_sort, moe.run_ragged(x, gates, up, down)

    def gradients(x: jax.Array, gates: jax.Array) -> tuple[Any, Any]:
        one, two = (jax.grad(lambda *a, i=i: (losses(*a)[i] ** 2).sum(), argnums=(0, 1))(x, gates) for i in (0, 1))
        return one, two

    for by_sort, ragged in (compiled(losses, x, gates)(x, gates), compiled(gradients, x, gates)(x, gates)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-3), ragged, by_sort)


def test_an_unknown_routing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 'einsum', 'sort' or 'ragged'"):
        dataclasses.replace(moe.PRESETS["tiny"], routing="hash")


def test_fused_matrices_of_llama_agree_with_separate_ones() -> None:
    config = llama.PRESETS["tiny"]
    state = initial_state("llama")

    def fuse(layer: Any) -> Any:
        def join(part: str, *names: str) -> dict[str, Any]:
            return {"kernel": jnp.concatenate([layer[part][name]["kernel"] for name in names], axis=-1)}

        attn = {"query": layer["attn"]["query"], "out": layer["attn"]["out"], "kv": join("attn", "key", "value")}
        return layer | {"attn": attn, "mlp": {"gate_up": join("mlp", "gate", "up"), "down": layer["mlp"]["down"]}}

    params = {name: fuse(value) if name.startswith("layer_") else value for name, value in state.params.items()}
    fused = dataclasses.replace(config, fused=True)
    np.testing.assert_allclose(
        loss("llama", fused, with_params("llama", fused, params=params)), loss("llama", config, state), rtol=1e-6
    )


def test_fused_matrix_of_gpt_agrees_with_separate_ones() -> None:
    config = gpt.PRESETS["tiny"]
    state = initial_state("gpt")

    def fuse(attn: Any) -> Any:
        parts = [attn[name] for name in ("query", "key", "value")]
        kernel = jnp.concatenate([part["kernel"].reshape(config.width, -1) for part in parts], axis=-1)
        bias = jnp.concatenate([part["bias"].reshape(-1) for part in parts])
        return {"qkv": {"kernel": kernel, "bias": bias}, "out": attn["out"]}

    params = {
        name: value | {"attn": fuse(value["attn"])} if name.startswith("h_") else value
        for name, value in state.params.items()
    }
    fused = dataclasses.replace(config, fused=True)
    assert fused.num_params() == count_params(params)
    np.testing.assert_allclose(
        loss("gpt", fused, with_params("gpt", fused, params=params)), loss("gpt", config, state), rtol=1e-6
    )


def test_rotary_scores_depend_on_distance_alone() -> None:
    x = jnp.broadcast_to(jax.random.normal(jax.random.key(0), (1, 1, 1, 16)), (1, 8, 1, 16))
    turned = llama.rotate(x, 10000.0)[0, :, 0]
    scores = turned @ turned.T
    for offset in range(8):
        diagonal = jnp.diagonal(scores, offset)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4)
    assert abs(scores[0, 0] - scores[0, 5]) > 1e-2


def test_every_skip_of_the_unet_is_used_once() -> None:
    for config in unet.PRESETS.values():
        layers = list(unet.plan(config))
        assert sum(layer.save for layer in layers) + 1 == sum(layer.skip for layer in layers)
