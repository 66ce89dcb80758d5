"""Statistics by micro-batch: steps against references written by hand, and steps that the option leaves as they are."""

from __future__ import annotations

from typing import Any
from unittest import mock

import ghost
import jax
import jax.numpy as jnp
import microbatch_steps as steps
import numpy as np
import pytest
from flax import linen as nn
from microbatch_steps import tiny

from rhino.errors import RhinoError
from rhino.microbatch.estimates import Estimates, bits
from rhino.microbatch.forms import ESTIMATE, WHOLE, Partial, Split
from rhino.program.data import Op

ADDED = Partial("add")


def split(text: str, count: int) -> str:
    """The step over micro-batches, each with its own statistics."""
    return steps.text_of(text, f"rhino-split-microbatch{{count={count} statistics=micro-batch}}")


def smooth(step: Any) -> Any:
    """A ReLU has no kink here, where what is zero but for rounding passes a gradient or none."""

    def run(state: Any, batch: Any) -> Any:
        with mock.patch.object(nn, "relu", nn.silu):
            return step(state, batch)

    return run


def check(step: Any, reference: Any, state: Any, batch: Any, count: int) -> None:
    """All results within 1e-5 of each one's largest value."""
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((state, batch))]
    made = jax.jit(reference).lower(state, batch).compile(compiler_options=steps.FAST_COMPILE)
    want = [np.asarray(leaf) for leaf in jax.tree.leaves(made(state, batch))]
    got = steps.run(split(steps.lowered(step, state, batch), count), flat)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), f"result {i}"


CASES = [
    ("convnet", {}, 2),
    ("wide_resnet", {"scan": True, "blocks": (3,)}, 4),
    pytest.param("wide_resnet", {"scan": True}, 4, marks=pytest.mark.long),
    pytest.param("convnet", {}, 4, marks=pytest.mark.long),
    pytest.param("wide_resnet", {}, 2, marks=pytest.mark.long),
    pytest.param("wide_resnet", {"remat": True}, 4, marks=pytest.mark.long),
    pytest.param("wide_resnet", {"scan": True, "remat": True}, 2, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "changes", "count"), CASES)
def test_models_with_batch_norm(name: str, changes: dict[str, Any], count: int) -> None:
    """Parameters, momentum (that is, gradients), running statistics and metrics; scans, and recomputed blocks."""
    step, state, batch = tiny(name, **changes)
    step = smooth(step)
    check(step, ghost.by_microbatch(step, count), state, batch, count)


def test_the_reference_is_not_the_step_of_one_device() -> None:
    step, state, batch = tiny("convnet")
    whole, own = jax.jit(step)(state, batch)[0].params, jax.jit(ghost.by_microbatch(step, 4))(state, batch)[0].params
    off = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max() / jnp.abs(b).max()), whole, own)
    assert max(jax.tree.leaves(off)) > 1e-2


def normalised(x: Any, scale: Any, offset: Any, eps: float = 1e-5) -> Any:
    """BatchNorm as one product and one sum per element: the gradient of the offset is a sum that others need too."""
    mean, var = x.mean(0), (x * x).mean(0) - x.mean(0) ** 2
    factor = scale * jax.lax.rsqrt(var + eps)
    return x * factor + (offset - mean * factor)


def root_mean_square(x: Any, scale: Any, offset: Any) -> Any:
    """Without a mean, and with a parameter inside of a function of the statistic."""
    return x * jnp.tanh(scale * jnp.sqrt((x * x).mean(0))) + offset


@pytest.mark.parametrize("norm", [normalised, root_mean_square])
@pytest.mark.parametrize("clip", [False, True])
def test_other_ways_to_write_it(norm: Any, clip: bool) -> None:
    """Products of sums and statistics in all orders; the global norm is of the gradient of the whole batch."""
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 6)).astype(np.float32)
    layers = [
        {"w": random.normal(size=(6, 6)), "scale": random.uniform(0.5, 2, 6), "offset": random.normal(size=6)}
        for _ in range(3)
    ]
    params = jax.tree.map(lambda leaf: leaf.astype(np.float32), layers)

    def make(count: int) -> Any:
        def apart(h: Any, layer: Any) -> Any:
            if count == 1:
                return norm(h, layer["scale"], layer["offset"])
            parts = h.reshape(-1, count, h.shape[-1])
            own = jax.vmap(norm, in_axes=(1, None, None), out_axes=1)(parts, layer["scale"], layer["offset"])
            return own.reshape(h.shape)

        def loss(params: Any, x: Any) -> Any:
            for layer in params:
                x = jnp.tanh(apart(x @ layer["w"], layer))
            return (x**2).sum(-1).mean()

        def step(params: Any, x: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, x)
            norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
            return jax.tree.map(lambda p, g: p - (g / norm if clip else g), params, grads), value

        return step

    check(make(1), make(4), params, x, 4)


def test_what_is_sync_free_stays_exact() -> None:
    """The option changes nothing where nothing is estimated: clipping, Adam, scans and their accumulators."""
    step, state, batch = tiny("gpt", scan=True, remat=True, layers=2)
    text = steps.lowered(step, state, batch)
    assert split(text, 4) == steps.split(text, 4)


def test_refused() -> None:
    step, state, batch = tiny("clip")
    with pytest.raises(RhinoError, match="brings examples together with other examples"):
        split(steps.lowered(step, state, batch), 2)
    step, state, batch = tiny("convnet")
    with pytest.raises(RhinoError, match="or give statistics=micro-batch"):
        steps.split(steps.lowered(step, state, batch), 2)


def test_statistics_are_advised_only_where_they_help() -> None:
    def needs_more(w: jax.Array, x: jax.Array) -> Any:
        y = x * w
        y -= y.mean(0)  # which a micro-batch can take its own for, but not the largest
        return w - (y / jnp.abs(y).max(0)).sum(0)

    def enough(w: jax.Array, x: jax.Array) -> Any:
        y = x * w
        return w - jnp.tanh(y - y.mean(0)).sum(0)

    w, x = jnp.ones(4), jnp.ones((8, 4))
    with pytest.raises(RhinoError, match="not sync-free") as refused:
        steps.split(steps.lowered(needs_more, w, x), 2)
    assert "statistics=micro-batch" not in refused.value.remedy
    with pytest.raises(RhinoError, match="or give statistics=micro-batch"):
        steps.split(steps.lowered(enough, w, x), 2)
    assert split(steps.lowered(enough, w, x), 2)


def test_what_goes_with_an_estimate() -> None:
    """Values 0, 1 and 2 are sums made by ops 0, 1 and 2; 1 was made with the estimate of 0."""
    estimates, part = Estimates(True), Split(0, 1, 8, 1)
    estimates.note(0, [(9, part)], [(0, ADDED)])
    estimates.note(5, [(9, part), (0, ESTIMATE)], [(8, part)])
    estimates.note(1, [(8, part)], [(1, ADDED)])
    estimates.note(2, [(9, part)], [(2, ADDED)])
    assert list(bits(estimates.used)) == [0]

    def held(a: int, b: int, name: str = "multiply") -> Any:
        return estimates.for_sum(Op(9, f"stablehlo.{name}", (a, b), (20,), None), [ADDED, ADDED], anyway=False)

    assert held(0, 1) == [ESTIMATE, ADDED]
    assert held(1, 0) == [ADDED, ESTIMATE]
    # Sums that know nothing of each other, a sum with itself, and what is not a product.
    assert held(0, 2) == held(0, 0) == held(0, 1, "add") == [ADDED, ADDED]
    # A function of both sums is known after the loop, and the second sum is part of it.
    estimates.note(6, [(0, ADDED), (1, ADDED)], [(7, ESTIMATE)], waits=True)
    assert estimates.for_sum(Op(9, "stablehlo.multiply", (1, 7), (20,), None), [ADDED, ESTIMATE], anyway=False) is None
    assert estimates.for_sum(Op(9, "stablehlo.add", (1, 7), (20,), None), [ADDED, ESTIMATE], anyway=False) is None
    assert not Estimates(False).can(ADDED) and not estimates.can(Partial("maximum")) and not estimates.can(WHOLE)
