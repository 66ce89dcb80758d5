"""The example models: one step over micro-batches against the step of the whole batch, or why it is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import numpy as np
import optax
import pytest

from examples.models import moe
from rhino.errors import RhinoError

CASES = [
    ("mlp", {}),
    ("gpt", {"dropout": 0.1, "remat": True, "layers": 1}),
    ("gpt", {"dropout": 0.1, "scan": True, "remat": True}),
    ("gpt", {"tied": False, "fused": True, "scan": True, "layers": 3}),
    ("llama", {"scan": True}),
    ("t5", {"layers": 1}),
    ("vit", {"layers": 1}),
    ("bert", {"scan": True}),
    ("dlrm", {}),
    ("lstm", {}),
]
# Made of what others have, too.
AS_OTHERS = (CASES[1], CASES[3], ("t5", {"layers": 1}), ("vit", {"layers": 1}), ("bert", {"scan": True}))


def compare(step: Any, state: Any, batch: Any, *counts: int, rtol: float = 1e-5) -> None:
    """Every result is that of the whole batch, for several numbers of micro-batches."""
    text = steps.lowered(step, state, batch)
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((state, batch))]
    want = steps.run(text, flat)
    for count in counts:
        steps.agree(steps.run(steps.split(text, count), flat), want, rtol, rtol)


@pytest.mark.parametrize(
    ("name", "changes"),
    [pytest.param(*case, marks=[pytest.mark.long] * (case in AS_OTHERS)) for case in CASES],
)
def test_micro_batches_make_the_same_step(name: str, changes: dict[str, Any]) -> None:
    compare(*steps.tiny(name, **changes), 4)


@pytest.mark.long
@pytest.mark.parametrize(("name", "changes"), CASES)
def test_any_number_of_micro_batches_makes_the_same_step(name: str, changes: dict[str, Any]) -> None:
    compare(*steps.tiny(name, **changes), 1, 2, 8)


@pytest.mark.long
def test_unet() -> None:
    compare(*steps.tiny("unet"), 2, 4)


def test_bfloat16() -> None:
    # Gradients of 2 examples instead of 8 are rounded to bfloat16, whose numbers are 2^-8 apart, before they are added.
    compare(*steps.tiny("gpt", dtype="bfloat16", scan=True), 4, rtol=2**-8)


@pytest.mark.parametrize(("routing", "scan"), [("einsum", False), pytest.param("sort", True, marks=pytest.mark.long)])
def test_experts_without_a_balance_loss(routing: str, scan: bool) -> None:
    config = dataclasses.replace(moe.PRESETS["tiny"], routing=routing, scan=scan)
    params = steps.tiny("moe", routing=routing, scan=scan)[1].params

    def step(params: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, _ = moe.MoE(config).apply({"params": params}, tokens[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    tokens = moe.example_batch(config, 8)["tokens"]
    compare(step, params, tokens, 4)
    # 64 tokens compete for experts, which are two examples.
    with pytest.raises(RhinoError, match="groups of 2 examples are computed together here, and 4 of them are not div"):
        steps.split(steps.lowered(step, params, tokens), 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide_resnet", "not sync-free: 'stablehlo.subtract' needs, for every example.*or give statistics=micro-batch"),
        ("convnet", "not sync-free: 'stablehlo.subtract' needs"),
        ("clip", "'stablehlo.dot_general' brings examples together with other examples"),
    ],
)
def test_refused(name: str, message: str) -> None:
    step, state, batch = steps.tiny(name)
    with pytest.raises(RhinoError, match=message):
        steps.split(steps.lowered(step, state, batch), 2)


def test_no_micro_batch_makes_random_bits_for_others() -> None:
    step, state, batch = steps.tiny("gpt", dropout=0.1, layers=1)
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
