"""The example models: one step over micro-batches against the step of the whole batch, or why it is refused."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
from typing import Any

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import numpy as np
import optax
import pytest

from examples.models import moe
from rhino.errors import RhinoError

# Names of parameters whose gradients are zero but for rounding: a softmax does not see what is added to all its inputs.
NOISE = re.compile(r"\['key'\]\['bias'\]|attention.*key.*bias")

CASES = [
    ("mlp", {}),
    ("gpt", {"dropout": 0.1, "remat": True}),
    ("gpt", {"dropout": 0.1, "scan": True, "remat": True}),
    ("gpt", {"tied": False, "fused": True, "scan": True, "layers": 3}),
    ("llama", {"scan": True}),
    ("t5", {}),
    ("vit", {}),
    ("bert", {"scan": True}),
    ("dlrm", {}),
    ("lstm", {}),
]


def tiny(name: str, batch_size: int = 8, **changes: Any) -> tuple[Any, Any, Any]:
    """The step of a tiny model, its initial state, and a batch."""
    if name == "lstm" and importlib.util.find_spec("equinox") is None:
        pytest.skip("the LSTM is written in Equinox")
    model = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(model.PRESETS["tiny"], **changes)
    init, step = model.make_train_step(config)
    key = jax.random.key(0, impl="unsafe_rbg")
    state = jax.jit(init).lower(key).compile(compiler_options=steps.FAST_COMPILE)(key)
    return step, state, model.example_batch(config, batch_size)


def compare(step: Any, state: Any, batch: Any, counts: tuple[int, ...], rtol: float = 1e-5) -> None:
    """Every result is that of the whole batch, for several numbers of micro-batches."""
    text = steps.lowered(step, state, batch)
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(step, state, batch))
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((state, batch))]
    want = steps.run(text, flat)
    for count in counts:
        got = steps.run(steps.split(text, count), flat)
        for name, a, b in zip(names, got, want, strict=True):
            if NOISE.search(name):
                continue
            # The first step of Adam divides a gradient by its size, which makes a sign of one that is almost zero. Its
            # moments hold the gradients themselves.
            loose = 1e-2 if "params" in name.split("]")[0] + name.split("]")[1] else rtol
            scale = max(float(np.abs(b.astype(np.float64)).max(initial=0)), 1e-30)
            np.testing.assert_allclose(a, b, rtol=loose, atol=loose * scale, err_msg=f"{name}, {count} micro-batches")


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_two_and_four_micro_batches_make_the_same_step(name: str, changes: dict[str, Any]) -> None:
    compare(*tiny(name, **changes), counts=(2, 4))


@pytest.mark.slow
def test_unet() -> None:
    compare(*tiny("unet"), counts=(2,))


def test_bfloat16() -> None:
    # Gradients are computed in bfloat16, of 2 examples instead of 8 at a time: rounded before they are added up.
    compare(*tiny("gpt", dtype="bfloat16", scan=True), counts=(4,), rtol=2e-2)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("routing", ["einsum", "sort"])
def test_experts_without_a_balance_loss(routing: str, scan: bool) -> None:
    config = dataclasses.replace(moe.PRESETS["tiny"], routing=routing, scan=scan)
    params = moe.make_train_step(config)[0](jax.random.key(0, impl="unsafe_rbg")).params

    def step(params: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, _ = moe.MoE(config).apply({"params": params}, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return gradients, value

    tokens = moe.example_batch(config, 8)["tokens"]
    compare(step, params, tokens, counts=(2, 4))
    # 64 tokens compete for experts, which are two examples.
    with pytest.raises(RhinoError, match="groups of 2 examples are computed together here, and 4 of them are not div"):
        steps.split(steps.lowered(step, params, tokens), 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide_resnet", "not sync-free: 'stablehlo.subtract' needs, for every example.*reduce' combines all examples"),
        ("convnet", "not sync-free: 'stablehlo.subtract' needs"),
        ("clip", "'stablehlo.dot_general' brings examples together with other examples"),
        ("moe", "not sync-free: .*'stablehlo.reduce' combines all examples here"),  # the balance loss
    ],
)
def test_refused(name: str, message: str) -> None:
    step, state, batch = tiny(name)
    with pytest.raises(RhinoError, match=message):
        steps.split(steps.lowered(step, state, batch), 2)


def test_no_micro_batch_makes_random_bits_for_others() -> None:
    step, state, batch = tiny("gpt", dropout=0.1, layers=1)
    text = steps.split(steps.lowered(step, state, batch), 4)
    loop = text[text.index("rhino.microbatches") :]
    assert "tensor<2x64x64xui32>" in loop  # the residual dropout of two examples
    assert "tensor<8x64x64xui32>" not in text


def test_exactness_does_not_rest_on_equal_parts() -> None:
    # A mean over tokens that are there: parts of the batch have different numbers of them.
    weights = np.zeros((8, 4), np.float32)
    weights[0, :] = weights[3, 1] = weights[4, :2] = 1
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)

    def step(w: Any, x: Any, weights: Any) -> Any:
        return jax.value_and_grad(lambda w: ((jnp.tanh(x * w) ** 2) * weights).sum() / weights.sum())(w)

    w = np.ones(4, np.float32)
    text = steps.lowered(step, w, x, weights)
    steps.agree(steps.run(steps.split(text, 4), [w, x, weights]), steps.run(text, [w, x, weights]))
