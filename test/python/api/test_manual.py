"""Steps with `jax.shard_map` in them, given to `rhino.parallelize`: planned around, and trained as on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import manual_steps as steps
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import rhino
from rhino.api.plan import Plan
from rhino.errors import RhinoError

PIPELINE = {"stages": 2, "microbatches": 2}


def arrays(seed: int, **shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return {n: jax.random.normal(k, s) * 0.2 for (n, s), k in zip(shapes.items(), keys, strict=True)}


def assert_trains_alike(step: Callable[..., Any], plain: Callable[..., Any], *given: Any) -> None:
    results = []
    for function in (step, jax.jit(plain)):
        params, losses = given[0], []
        for _ in range(3):
            params, loss = function(params, *given[1:])
            losses.append(float(loss))
        results.append((jax.tree.map(np.asarray, params), losses))
    (ours, losses), (theirs, wanted) = results
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)


def attention_inputs(batch: int = 8, positions: int = 32, width: int = 32) -> tuple[Any, jax.Array, jax.Array]:
    data = arrays(1, x=(batch, positions, width), y=(batch, positions, width))
    return arrays(0, **steps.block_params(width)), data["x"], data["y"]


def dims(plan: Plan) -> set[Any]:
    return {use.dims for use in plan.kernels if use.name == "manual-computation"}


def sent(items: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind, nbytes in items:
        found[kind] = found.get(kind, 0) + nbytes
    return found


def four() -> Any:
    return jax.make_mesh((4,), ("sp",), axis_types=(AxisType.Auto,))


def two_by_four() -> Any:
    return jax.make_mesh((2, 4), ("data", "sp"), axis_types=(AxisType.Auto,) * 2)


WAYS: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "outer": (four, {}, {"mesh": (2, 4)}),
    "inner": (lambda: steps.mesh_of(sp=2), {}, {}),
    "unchecked": (lambda: steps.mesh_of(sp=4), {"check_vma": False}, {"mesh": (2, 4)}),
    "partial": (two_by_four, {"axis_names": {"sp"}}, {}),
    "2 stages": (four, {}, PIPELINE),
    "2 stages of 2 replicas": (lambda: steps.mesh_of(sp=2), {}, {**PIPELINE, "mesh": (2,)}),
}


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=[pytest.mark.long] * (w in ("outer", "unchecked", "2 stages"))) for w in WAYS]
)
def test_ring_attention_trains_as_on_one_device(way: str) -> None:
    mesh, options, settings = WAYS[way]
    inputs = attention_inputs()
    step = rhino.parallelize(steps.transformer_step(steps.ring_attention(mesh(), **options)), **settings)
    plan = step.plan(*inputs)
    assert all(split[1] == ("sp",) for split in dims(plan))
    assert_trains_alike(step, steps.transformer_step(steps.attention), *inputs)
    if not settings.get("stages"):
        # What goes round is predicted to the byte.
        compiled = sent((c.kind, c.bytes) for c in step.compile(*inputs).collectives())
        assert plan.predicted.comm_bytes["collective-permute"] == compiled["collective-permute"]


def test_the_other_axis_splits_the_batch_or_the_heads() -> None:
    inputs = attention_inputs(16, 64, 64)
    step = rhino.parallelize(steps.transformer_step(steps.ring_attention(steps.mesh_of(sp=4))), mesh=(2, 4))
    found = dims(step.plan(*inputs))
    assert found <= {(("x",), ("sp",), (), ()), ((), ("sp",), ("x",), ())}


@pytest.mark.parametrize("settings", [{"mesh": (2, 4)}, PIPELINE], ids=["one program", "2 stages"])
def test_a_pallas_kernel_in_shard_map_trains_as_on_one_device(settings: dict[str, Any]) -> None:
    data = arrays(1, x=(16, 64, 64), y=(16, 64, 64))
    inputs = arrays(0, up=(64, 64), down=(64, 64)), data["x"], data["y"]
    step = rhino.parallelize(steps.pallas_step(steps.mesh_of(sp=4)), **settings)
    assert_trains_alike(step, steps.pallas_step(None), *inputs)


@pytest.mark.parametrize("mesh", [(2, 4), (4, 2)])
def test_all_kinds_of_collectives_run_beside_a_free_axis(mesh: tuple[int, int]) -> None:
    """Groups of devices are those of the larger mesh, and XLA gathers nothing around them."""

    def body(x: jax.Array) -> jax.Array:
        whole = jax.lax.all_gather(x, "tp", axis=1, tiled=True)
        scattered = jax.lax.psum_scatter(jnp.tanh(whole), "tp", scatter_dimension=1, tiled=True)
        turned = jnp.sin(jax.lax.all_to_all(x, "tp", split_axis=2, concat_axis=1, tiled=True))
        turned = jax.lax.all_to_all(turned, "tp", split_axis=1, concat_axis=2, tiled=True)
        return scattered + turned + jax.lax.psum(x, "tp") * 0.1 + jax.lax.axis_index("tp")

    def plain(x: jax.Array) -> jax.Array:
        b, s, d = x.shape
        added = jnp.tile(x.reshape(b, 4, s // 4, d).sum(1) * 0.1, (1, 4, 1))
        return 4 * jnp.tanh(x) + jnp.sin(x) + added + jnp.repeat(jnp.arange(4.0), s // 4)[:, None]

    def step(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda w, x: jax.value_and_grad(lambda w: jnp.mean(f(x @ w) ** 2))(w)

    split = P(None, "tp")
    mapped = jax.shard_map(body, mesh=steps.mesh_of(tp=4), in_specs=split, out_specs=split)
    given = arrays(2, w=(64, 64), x=(16, 64, 64))
    ours = rhino.parallelize(step(mapped), mesh=mesh)
    plan = ours.plan(given["w"], given["x"])
    assert dims(plan) == {(("x",), ("tp",), ())}
    for a, b in zip(ours(given["w"], given["x"]), jax.jit(step(plain))(given["w"], given["x"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    compiled = sent((c.kind, c.bytes) for c in ours.compile(given["w"], given["x"]).collectives())
    for kind in ("all-gather", "reduce-scatter", "all-to-all"):
        assert plan.predicted.comm_bytes[kind] == compiled[kind]


def test_a_followed_step_keeps_the_mesh_of_the_first() -> None:
    params, x, y = attention_inputs()
    ring = steps.ring_attention(steps.mesh_of(sp=4))
    train = rhino.parallelize(steps.transformer_step(ring), mesh=(2, 4))
    train.plan(params, x, y)

    def evaluate(params: Any, x: jax.Array) -> jax.Array:
        b, s, d = x.shape
        q, k, v = ((x @ params[name]).reshape(b, s, 4, d // 4) for name in "qkv")
        return ring(q, k, v).reshape(b, s, d) @ params["o"]

    follower = rhino.parallelize(evaluate, follow=train)
    plan = follower.plan(params, x)
    assert plan.mesh == train.plan(params, x, y).mesh == (("x", 2), ("sp", 4))
    assert follower(params, x).shape == x.shape


def test_a_cluster_without_room_for_the_mesh_is_refused() -> None:
    inputs = attention_inputs(6, 30, 32)
    step = rhino.parallelize(steps.transformer_step(steps.ring_attention(steps.mesh_of(sp=3))))
    with pytest.raises(RhinoError, match="mesh sp=3 of 3 devices, which do not divide the 8"):
        step.plan(*inputs)


def test_ring_attention_of_a_large_model_is_compiled_as_predicted() -> None:
    """Two layers as wide as GPT 1.3 B, 8,192 positions, without a GPU."""
    mesh = steps.mesh_of(sp=4)
    width, heads = 2048, 16

    def step(params: Any, x: jax.Array) -> Any:
        ring = steps.ring_attention(mesh, remat=True)

        def loss(params: Any) -> jax.Array:
            h = x
            for p in params:
                q, k, v = ((h @ p[name]).reshape(*h.shape[:2], heads, width // heads) for name in "qkv")
                h = h + ring(q, k, v).reshape(h.shape) @ p["o"]
                h = h + jnp.tanh(h @ p["up"]) @ p["down"]
            return jnp.mean(h.astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: (p - 0.1 * g).astype(p.dtype), params, grads), value

    layer = {n: jax.ShapeDtypeStruct(s, jnp.bfloat16) for n, s in steps.block_params(width).items()}
    given = [layer, layer], jax.ShapeDtypeStruct((8, 8192, width), jnp.bfloat16)
    planned = rhino.parallelize(step, cluster="dgx-h100:1", donate_argnums=(0,))
    plan, compiled = planned.plan(*given), planned.compile(*given)
    found = sent((c.kind, c.bytes) for c in compiled.collectives())
    assert plan.predicted.comm_bytes == found
    assert plan.predicted.peak_bytes == pytest.approx(compiled.memory_analysis().peak_bytes, rel=0.15)


@pytest.mark.parametrize("other", [{"all": 8}, {"tp": 4}, {"dp": 2}], ids=str)
def test_computations_over_meshes_that_one_refines(other: dict[str, int]) -> None:
    def step_of(first: Any, second: Any) -> Callable[..., Any]:
        (axis,) = other

        def scores(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.lax.psum(jnp.tanh(x @ w) * (1 + jax.lax.axis_index("sp")), "sp")

        def mix(x: jax.Array) -> jax.Array:
            place = 1 + jax.lax.axis_index(axis).astype(x.dtype)
            return jax.lax.all_gather(x * place, axis, axis=0, tiled=True).sum(0, keepdims=True) + x

        outer = jax.shard_map(scores, mesh=first, in_specs=(P(), P(None, "sp")), out_specs=P(), check_vma=False)
        inner = jax.shard_map(mix, mesh=second, in_specs=P(axis), out_specs=P(axis), check_vma=False)

        def step(params: Any, x: jax.Array) -> Any:
            value, grads = jax.value_and_grad(lambda p: jnp.mean(inner(outer(x, p)) ** 2))(params)
            return params - 0.1 * grads, value

        return step

    given = arrays(0, w=(16, 16), x=(8, 16))
    parallel = rhino.parallelize(step_of(steps.mesh_of(data=2, sp=4), steps.mesh_of(**other)))
    ours, value = parallel(given["w"], given["x"])
    assert parallel.plan(given["w"], given["x"]).mesh == (("data", 2), ("sp", 4))
    # jax runs computations over some of the devices beside others over all of them only where both meshes have all.
    whole = jax.make_mesh((8 // sum(other.values()), *other.values()), ("rest", *other), (AxisType.Auto,) * 2)
    meshes = [two_by_four(), whole]
    theirs, wanted = jax.jit(step_of(*meshes))(given["w"], given["x"])
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
