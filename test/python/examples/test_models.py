"""The example models: sizes, training, the equivalence of their variants, and that they stay single-device code."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples.models import convnet, gpt, mlp

MODELS = {"gpt": gpt, "mlp": mlp, "convnet": convnet}
PRESETS = [(name, preset) for name, model in MODELS.items() for preset in model.PRESETS]
TINY = gpt.PRESETS["tiny"]


def count_params(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def run_steps(model: ModuleType, config: Any, count: int, batch_size: int = 8) -> tuple[Any, list[float]]:
    """The state and the losses after `count` steps on one fixed batch."""
    init_fn, train_step = model.make_train_step(config)
    state, step = init_fn(jax.random.key(0)), jax.jit(train_step)
    batch = model.example_batch(config, batch_size)
    losses = []
    for _ in range(count):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return state, losses


def loss_and_grads(config: gpt.GPTConfig, params: Any) -> tuple[jax.Array, Any]:
    tokens = gpt.example_batch(config, 4)["tokens"]

    def loss(p: Any) -> jax.Array:
        return gpt.next_token_loss(gpt.GPT(config).apply({"params": p}, tokens[:, :-1]), tokens[:, 1:])

    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.fixture(scope="module")
def params() -> Any:
    """Parameters of the unrolled tiny GPT."""
    return gpt.make_train_step(TINY)[0](jax.random.key(1)).params


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_closed_form_parameter_count_is_that_of_the_model(name: str, preset: str) -> None:
    config = MODELS[name].PRESETS[preset]
    if name == "gpt" and preset != "tiny":
        config = dataclasses.replace(config, scan=True)  # traces faster; a test below says that it is the same model
    state, _ = MODELS[name].abstract_inputs(config, batch_size=2)
    assert config.num_params() == count_params(state.params)


def test_published_parameter_counts() -> None:
    # He et al. 2015 / torchvision; GPT-2 and GPT-3 sizes are given to two or three digits by their papers.
    assert convnet.PRESETS["resnet18"].num_params() == 11_689_512
    assert convnet.PRESETS["resnet50"].num_params() == 25_557_032
    expected = {"10m": 10.8e6, "125m": 125e6, "1.3b": 1.3e9, "2.6b": 2.6e9, "6.7b": 6.7e9, "175b": 175e9}
    for preset, count in expected.items():
        assert gpt.PRESETS[preset].num_params() == pytest.approx(count, rel=0.03), preset


@pytest.mark.parametrize("changes", [{"tied": False}, {"scan": True}, {"tied": False, "scan": True, "remat": True}])
def test_parameter_count_of_variants(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(TINY, **changes)
    assert config.num_params() == count_params(gpt.abstract_inputs(config, 2)[0].params)


@pytest.mark.parametrize("name", MODELS)
def test_abstract_inputs_are_shapes_of_the_concrete_ones(name: str) -> None:
    model = MODELS[name]
    config = model.PRESETS["tiny"]
    abstract_state, abstract_batch = model.abstract_inputs(config, 4)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves((abstract_state, abstract_batch)))

    def describe(tree: Any) -> list[tuple[str, tuple[int, ...], str]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return [(jax.tree_util.keystr(path), jnp.shape(leaf), str(jnp.result_type(leaf))) for path, leaf in leaves]

    state = model.make_train_step(config)[0](jax.random.key(0))
    assert describe((abstract_state, abstract_batch)) == describe((state, model.example_batch(config, 4)))


@pytest.mark.parametrize("name", MODELS)
def test_training_reduces_the_loss(name: str) -> None:
    state, losses = run_steps(MODELS[name], MODELS[name].PRESETS["tiny"], count=20)
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.7 * losses[0], losses
    assert int(state.step) == 20


def test_first_loss_is_that_of_a_uniform_guess() -> None:
    _, losses = run_steps(gpt, TINY, count=1)
    assert losses[0] == pytest.approx(np.log(TINY.vocab), rel=0.01)


def test_scan_agrees_with_unrolled(params: Any) -> None:
    scanned = dataclasses.replace(TINY, scan=True)
    loss, grads = loss_and_grads(TINY, params)
    loss_scan, grads_scan = loss_and_grads(scanned, gpt.stack_layers(params, TINY))
    np.testing.assert_allclose(loss_scan, loss, rtol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads_scan, gpt.stack_layers(grads, TINY)
    )


def test_scan_state_has_the_shapes_of_stacked_layers(params: Any) -> None:
    state, _ = gpt.abstract_inputs(dataclasses.replace(TINY, scan=True), 2)
    expected = jax.eval_shape(lambda p: gpt.stack_layers(p, TINY), params)
    assert jax.tree.map(jnp.shape, state.params) == jax.tree.map(jnp.shape, expected)


@pytest.mark.parametrize("scan", [False, True])
def test_remat_agrees_and_recomputes(params: Any, scan: bool) -> None:
    plain = dataclasses.replace(TINY, scan=scan)
    remat = dataclasses.replace(plain, remat=True)
    params = gpt.stack_layers(params, TINY) if scan else params
    loss, grads = loss_and_grads(plain, params)
    loss_remat, grads_remat = loss_and_grads(remat, params)
    np.testing.assert_allclose(loss_remat, loss, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads_remat, grads)

    def dots(config: gpt.GPTConfig) -> int:
        lowered = jax.jit(gpt.make_train_step(config)[1]).lower(*gpt.abstract_inputs(config, 2))
        return int(lowered.as_text().count("stablehlo.dot_general"))

    assert dots(remat) > dots(plain)


def test_bfloat16_keeps_parameters_optimizer_and_loss_in_float32() -> None:
    config = dataclasses.replace(TINY, dtype="bfloat16")
    train_step = gpt.make_train_step(config)[1]
    state, batch = gpt.abstract_inputs(config, 2)
    after, metrics = jax.eval_shape(train_step, state, batch)
    for leaf in jax.tree.leaves((after.params, after.opt_state, metrics)):
        assert leaf.dtype in (jnp.float32, jnp.int32)
    text = jax.jit(train_step).lower(state, batch).as_text()
    dots = re.findall(r"stablehlo\.dot_general.* -> tensor<\S*x(\w+)>", text)
    assert set(dots) == {"bf16"}, "every matrix product is computed in bfloat16"
    _, losses = run_steps(gpt, config, count=20)
    assert losses[-1] < 0.7 * losses[0]


def test_a_position_sees_only_earlier_tokens(params: Any) -> None:
    tokens = gpt.example_batch(TINY, 1)["tokens"][:, :-1]
    changed = tokens.copy()
    changed[:, 20] = (changed[:, 20] + 1) % TINY.vocab
    model = jax.jit(gpt.GPT(TINY).apply)
    before, after = model({"params": params}, tokens), model({"params": params}, changed)
    np.testing.assert_array_equal(before[:, :20], after[:, :20])
    # The changed token reaches its own position and, through attention, later ones too.
    assert (jnp.abs(before - after).max(axis=-1)[0, [20, 25]] > 0).all()


def test_dropout_differs_between_steps_and_is_off_in_evaluation() -> None:
    config = dataclasses.replace(TINY, dropout=0.5)
    init_fn, train_step = gpt.make_train_step(config)
    state, batch = init_fn(jax.random.key(0)), gpt.example_batch(config, 2)
    losses = [float(jax.jit(train_step)(state.replace(step=step), batch)[1]["loss"]) for step in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    without = jax.jit(gpt.make_train_step(TINY)[1])(state, batch)[1]["loss"]
    evaluated = jax.jit(gpt.make_eval_step(config))(state, batch)["loss"]
    np.testing.assert_allclose(evaluated, without, rtol=1e-6)


def test_gradients_are_clipped() -> None:
    config = dataclasses.replace(TINY, clip_norm=1e-3)
    init_fn, train_step = gpt.make_train_step(config)
    state, metrics = jax.jit(train_step)(init_fn(jax.random.key(0)), gpt.example_batch(config, 2))
    assert metrics["grad_norm"] > 1e-3
    first_moment = state.opt_state[1][0].mu
    norm = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(first_moment)))
    np.testing.assert_allclose(norm, (1 - 0.9) * 1e-3, rtol=1e-3)


def test_batch_norm_statistics_follow_the_data() -> None:
    config = convnet.PRESETS["tiny"]
    before = convnet.make_train_step(config)[0](jax.random.key(0)).batch_stats
    after = run_steps(convnet, config, count=1)[0].batch_stats
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert not np.array_equal(old, new)


def test_models_are_written_for_one_device() -> None:
    # What the examples are for: a user's model and step say nothing of how they are distributed.
    forbidden = re.compile(r"shard|PartitionSpec|rhino|mesh|pmap|axis_name|psum|with_logical|devices\(", re.IGNORECASE)
    sources = sorted(Path(gpt.__file__).parent.glob("*.py"))
    assert {"gpt.py", "mlp.py", "convnet.py"} <= {path.name for path in sources}
    for path in sources:
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert not forbidden.search(line), f"{path.name}:{number}: {line}"
