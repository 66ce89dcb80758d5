"""Options that published architectures need of the example models: what they compute, against the same without them."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.models import bert, gpt, llama, sparse_llama, t5, vit
from examples.models.products import dot_general


def after_a_step(module: Any, config: Any) -> tuple[Any, Any]:
    """Metrics and parameters after one step from seed 0."""
    init, step = module.make_train_step(config)
    state, metrics = jax.jit(step)(init(jax.random.key(0)), module.example_batch(config, 4))
    return metrics, state.params


def count(params: Any) -> int:
    """Trained scalars."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", ["gpt", pytest.param("llama", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"remat": True, "saved": "dots_with_no_batch_dims_saveable"}, marks=pytest.mark.long),
        pytest.param({"remat": True, "saved": "everything_saveable"}, marks=pytest.mark.long),
    ],
)
def test_what_is_saved_changes_no_result(name: str, changes: dict[str, Any]) -> None:
    module = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(module.PRESETS["tiny"], scan=True)
    metrics, params = after_a_step(module, config)
    other, same = after_a_step(module, dataclasses.replace(config, **changes))
    assert other["loss"] == pytest.approx(float(metrics["loss"]), rel=1e-5)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.long
def test_scores_alone_can_be_recomputed() -> None:
    config = dataclasses.replace(gpt.PRESETS["tiny"], scan=True)
    metrics, _ = after_a_step(gpt, config)
    other, _ = after_a_step(gpt, dataclasses.replace(config, remat_scores=True))
    assert other["grad_norm"] == pytest.approx(float(metrics["grad_norm"]), rel=1e-4)

    def products(config: gpt.GPTConfig) -> int:
        return str(jax.make_jaxpr(gpt.make_train_step(config)[1])(*gpt.abstract_inputs(config, 4))).count("dot_general")

    # Of the layer's body, the product of queries and keys once more.
    assert products(dataclasses.replace(config, remat_scores=True)) == products(config) + 1


@pytest.mark.long
def test_some_layers_can_be_recomputed() -> None:
    config = dataclasses.replace(llama.PRESETS["tiny"], layers=3, scan=True, remat=True, recomputed=2)
    metrics, params = after_a_step(llama, config)
    assert count(params) == config.num_params()
    kernel = params["layer_recomputed"]["mlp"]["up"]["kernel"], params["layer"]["mlp"]["up"]["kernel"]
    assert [k.shape[0] for k in kernel] == [2, 1]
    assert np.isfinite(metrics["loss"])
    with pytest.raises(ValueError, match="only a scan recomputes some"):
        after_a_step(llama, dataclasses.replace(config, scan=False))


def test_eight_bits_round_operands_forward_and_backward() -> None:
    dot = dot_general("f8")
    assert dot is not None
    assert dot_general("") is None
    x, w = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(4, 8, 32), (32, 2, 16)]))
    dims = (((2,), (0,)), ((), ()))

    def loss(x: jax.Array, w: jax.Array, product: Any) -> jax.Array:
        return jnp.sin(product(x, w, dims)).sum()

    exact = jax.grad(loss, (0, 1))(x, w, jax.lax.dot_general)
    rounded = jax.grad(loss, (0, 1))(x, w, dot)
    for a, b in zip(exact, rounded, strict=True):
        assert a.shape == b.shape
        # Not equal, for it is rounded; and the same direction.
        cosine = jnp.vdot(a, b) / jnp.linalg.norm(a) / jnp.linalg.norm(b)
        assert 0.9 < cosine < 0.99999
    text = str(jax.make_jaxpr(jax.grad(lambda x, w: loss(x, w, dot), (0, 1)))(x, w))
    assert text.count("dot_general") == 3
    assert "f8_e4m3fn" in text
    assert "f8_e5m2" in text


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt", "llama", "t5"])
def test_models_learn_in_eight_bits(name: str) -> None:
    module = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(module.PRESETS["tiny"], products="f8")
    exact, _ = after_a_step(module, module.PRESETS["tiny"])
    metrics, _ = after_a_step(module, config)
    assert metrics["loss"] == pytest.approx(float(exact["loss"]), rel=0.05)
    with pytest.raises(ValueError, match="products is 'f4'"):
        dataclasses.replace(config, products="f4")


@pytest.mark.long
def test_networks_without_or_with_a_gate_have_the_parameters_they_say() -> None:
    for module, config in (
        (llama, dataclasses.replace(llama.PRESETS["tiny"], gated=False)),
        (t5, dataclasses.replace(t5.PRESETS["tiny"], gated=True)),
        (vit, dataclasses.replace(vit.PRESETS["tiny"], hidden=48)),
    ):
        metrics, params = after_a_step(module, config)
        assert np.isfinite(metrics["loss"])
        assert count(params) == config.num_params()


@pytest.mark.long
def test_one_expert_that_takes_every_token_is_a_plain_network() -> None:
    small = llama.PRESETS["tiny"]
    sparse = dataclasses.replace(
        sparse_llama.PRESETS["tiny"], layers=small.layers, experts=1, chosen=1, expert=small.hidden, shared=0, dense=0
    )
    params = sparse_llama.make_train_step(sparse)[0](jax.random.key(0)).params
    plain = dict(params)
    for name in ("layer_0", "layer_1"):
        layer = dict(params[name])
        experts = layer.pop("experts")
        plain[name] = layer | {"mlp": {part: {"kernel": experts[part][0]} for part in ("gate", "up", "down")}}
    tokens = llama.example_batch(small, 2)["tokens"]
    small = dataclasses.replace(small, norm_epsilon=1e-6)
    found = sparse_llama.SparseLlama(sparse).apply({"params": params}, tokens)
    np.testing.assert_allclose(found, llama.Llama(small).apply({"params": plain}, tokens), atol=1e-4)


@pytest.mark.long
def test_narrow_projections_keep_attention_causal_and_have_the_parameters_they_say() -> None:
    config = dataclasses.replace(
        sparse_llama.PRESETS["tiny"], kv_heads=4, query_rank=24, key_rank=16, rotated=8, experts=1, chosen=1
    )
    params = sparse_llama.make_train_step(config)[0](jax.random.key(0)).params
    assert count(params) == config.num_params()
    tokens = sparse_llama.example_batch(config, 1)["tokens"][:, :16]
    other = tokens.copy()
    other[0, -1] += 1
    first, second = (sparse_llama.SparseLlama(config).apply({"params": params}, given) for given in (tokens, other))
    np.testing.assert_allclose(first[:, :-1], second[:, :-1], atol=1e-5)
    assert np.abs(first[:, -1] - second[:, -1]).max() > 1e-4


@pytest.mark.long
def test_few_predicted_places_are_the_same_as_all_with_no_weight_elsewhere() -> None:
    few = dataclasses.replace(bert.PRESETS["tiny"], predicted=5)
    init, step = bert.make_train_step(few)
    batch = bert.example_batch(few, 4)
    assert batch["places"].shape == batch["targets"].shape == (4, 5)
    state = init(jax.random.key(0))
    spread = {name: np.zeros(batch["tokens"].shape, batch[name].dtype) for name in ("targets", "weights")}
    for name, full in spread.items():
        np.put_along_axis(full, batch["places"], batch[name], axis=1)
    whole = {name: batch[name] for name in ("tokens", "segments", "valid")} | spread
    _, metrics = step(state, batch)
    _, other = bert.make_train_step(bert.PRESETS["tiny"])[1](state, whole)
    assert metrics["loss"] == pytest.approx(float(other["loss"]), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(float(other["grad_norm"]), rel=1e-4)
