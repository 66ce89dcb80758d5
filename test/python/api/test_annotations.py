"""Programs with meshes and annotations of their own, given to `rhino.parallelize`: as written, right on every mesh."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import annotated_decoder as decoder
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rhino
from rhino.errors import RhinoWarning

AUTO = AxisType.Auto


@contextlib.contextmanager
def rules(mesh: Mesh) -> Iterator[None]:
    with jax.set_mesh(mesh), nn.logical_axis_rules(decoder.RULES):
        yield


def trained(step: Callable[..., Any], state: Any) -> tuple[list[float], Any]:
    losses = []
    for _ in range(3):
        state, metrics = step(state, decoder.batch_of())
        losses.append(float(metrics["loss"]))
    return losses, state


@pytest.fixture(scope="module")
def on_one_device() -> tuple[list[float], Any]:
    return trained(jax.jit(decoder.train_step), decoder.make_state(jax.random.key(0)))


SETTINGS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "a mesh of one device": ({}, {}),
    "twelve axes, two that split": ({"fsdp": 4, "tensor": 2}, {}),
    "twelve axes, ignored": ({"fsdp": 4, "tensor": 2}, {"annotations": "ignore"}),
}


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_decoder_like_maxtexts_trains_as_written(setting: str, on_one_device: tuple[list[float], Any]) -> None:
    sizes, options = SETTINGS[setting]
    step = rhino.parallelize(decoder.train_step, **options)
    with rules(decoder.mesh_of(**sizes)), warnings.catch_warnings():
        warnings.simplefilter("error", RhinoWarning)
        plan = step.plan(jax.eval_shape(decoder.make_state, jax.random.key(0)), decoder.batch_of())
        losses, state = trained(step, step.init(decoder.make_state, jax.random.key(0)))
    wanted, reference = on_one_device
    kept = sizes if not options else {}
    assert dict(plan.mesh) == kept or (not kept and set(dict(plan.mesh)) <= set("xyz"))
    np.testing.assert_allclose(losses, wanted, rtol=2e-3)
    for ours, theirs in zip(jax.tree.leaves(state.params), jax.tree.leaves(reference.params), strict=True):
        assert np.abs(np.asarray(ours) - np.asarray(theirs)).mean() < 1e-3  # Adam makes much of bfloat16's noise


# --- small steps ----------------------------------------------------------------------------------------------------

Constraint = Callable[[jax.Array], jax.Array]


def step_of(first: Constraint, second: Constraint) -> Callable[..., Any]:
    def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
        def loss(p: dict[str, jax.Array]) -> jax.Array:
            return jnp.mean(second(first(jnp.tanh(first(x) @ p["up"])) @ p["down"] - x) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def mesh_of(kind: AxisType = AUTO, **axes: int) -> Mesh:
    count = int(np.prod(list(axes.values())))
    return Mesh(
        np.array(jax.devices()[:count]).reshape(tuple(axes.values())), tuple(axes), axis_types=(kind,) * len(axes)
    )


def over(mesh: Any, *dims: Any) -> Constraint:
    return lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*dims)))


def inputs() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    params = {"up": rng.normal(size=(32, 64)) * 0.1, "down": rng.normal(size=(64, 32)) * 0.1}
    return {n: p.astype(np.float32) for n, p in params.items()}, rng.normal(size=(16, 32)).astype(np.float32)


def as_on_one_device(step: Callable[..., Any], **options: Any) -> rhino.Plan:
    """The plan, of a step whose results are those of the one without annotations."""
    parallel = rhino.parallelize(step, **options)
    params, x = inputs()
    (params_of, loss), (wanted_of, wanted) = parallel(params, x), jax.jit(step_of(lambda v: v, lambda v: v))(params, x)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), params_of, wanted_of)
    return parallel.plan(params, x)


def test_a_mesh_of_one_device_says_nothing() -> None:
    mesh = mesh_of(data=1, model=1)
    assert as_on_one_device(step_of(over(mesh, "data"), over(mesh, None, "model"))).mesh == (("x", 8),)


def test_four_axes_are_kept_and_two_layouts_of_what_is_added() -> None:
    mesh = mesh_of(a=2, b=2, c=2, d=1)

    def first(x: jax.Array) -> jax.Array:
        return (over(mesh, ("a", "d"), "b")(x) + over(mesh, "b", ("a", "c"))(x)) / 2

    plan = as_on_one_device(step_of(first, over(mesh, ("c", "a", "b"))))
    assert plan.mesh == (("a", 2), ("b", 2), ("c", 2))


def test_a_smaller_mesh_is_a_part_of_the_plans_and_of_a_stages() -> None:
    step = step_of(over(mesh_of(data=4), "data"), over(mesh_of(data=4), "data"))
    plan = as_on_one_device(step)
    assert ("data", 4) in plan.mesh and plan.devices == 8
    assert plan.arguments[-1].sharding[0][:1] == ("data",)
    assert as_on_one_device(step, stages=2, microbatches=2).mesh == (("data", 4),)


@pytest.mark.parametrize("count", [3, 16])
def test_a_mesh_that_does_not_divide_the_devices_is_said_at_its_line(count: int) -> None:
    mesh = AbstractMesh((count,), ("data",), axis_types=(AUTO,))
    with pytest.warns(RhinoWarning, match=f"data={count} of {count} devices, which do not divide the 8") as found:
        plan = as_on_one_device(step_of(over(mesh, "data"), over(mesh, "data")))
    assert plan.mesh == (("x", 8),)
    assert {warning.filename for warning in found if warning.category is RhinoWarning} == {__file__}


def test_annotations_that_stages_have_no_room_for_are_said() -> None:
    mesh = mesh_of(data=2, model=4)
    with pytest.warns(RhinoWarning, match="each of 2 stages has 4 devices"):
        assert as_on_one_device(step_of(over(mesh, "data"), over(mesh, "data")), stages=2, microbatches=2).stages == 2


def test_of_two_meshes_one_is_kept_and_the_other_is_said() -> None:
    with pytest.warns(RhinoWarning, match="over a mesh all=8, and the plan's has data=2, model=4"):
        plan = as_on_one_device(step_of(over(mesh_of(data=2, model=4), "data"), over(mesh_of(all=8), "all")))
    assert plan.mesh == (("data", 2), ("model", 4))


def test_the_axes_of_a_mesh_with_devices_in_another_order_are_kept() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2).T, ("data", "model"), axis_types=(AUTO, AUTO))
    assert as_on_one_device(step_of(over(mesh, "data"), over(mesh, "data"))).mesh == (("data", 2), ("model", 4))


def test_a_function_jitted_with_shardings_keeps_them() -> None:
    mesh = mesh_of(data=2, model=4)
    state = {"up": NamedSharding(mesh, P(None, "model")), "down": NamedSharding(mesh, P("model"))}
    same = step_of(lambda v: v, lambda v: v)
    step = jax.jit(same, in_shardings=(state, NamedSharding(mesh, P("data"))), out_shardings=(state, None))
    assert {t.name: t.sharding for t in as_on_one_device(step).outputs if t.shape} != {}


@pytest.mark.parametrize("count", [1, 8])
def test_a_mesh_with_explicit_axes_that_nothing_is_split_over_is_no_annotation(count: int) -> None:
    with jax.set_mesh(mesh_of(AxisType.Explicit, data=count)):
        assert as_on_one_device(step_of(lambda v: v, lambda v: v)).mesh == (("x", 8),)


def test_explicit_axes_are_kept_where_the_step_splits_over_them() -> None:
    def split(x: jax.Array) -> jax.Array:
        return jax.sharding.reshard(x, P("data"))

    with jax.set_mesh(mesh_of(AxisType.Explicit, data=2, model=4)):
        plan = as_on_one_device_explicit(step_of(split, split))
    assert plan.mesh == (("data", 2), ("model", 4))


def as_on_one_device_explicit(step: Callable[..., Any]) -> rhino.Plan:
    """As `as_on_one_device`, whose reference must not see the mesh."""
    parallel = rhino.parallelize(step)
    params, x = inputs()
    _, loss = parallel(params, x)
    with jax.set_mesh(None):
        wanted = jax.jit(step_of(lambda v: v, lambda v: v))(params, x)[1]
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    return parallel.plan(params, x)


def test_shard_map_over_one_device_is_its_body() -> None:
    mesh = mesh_of(data=1)
    summed = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
    assert as_on_one_device(step_of(summed, lambda v: v)).mesh == (("x", 8),)


def test_callbacks_run_beside_annotations(capfd: pytest.CaptureFixture[str]) -> None:
    mesh = mesh_of(data=2, model=4)

    def second(x: jax.Array) -> jax.Array:
        jax.debug.print("sum {s}", s=jnp.sum(x))
        return over(mesh, "data")(x)

    as_on_one_device(step_of(over(mesh, "data"), second))
    jax.effects_barrier()
    assert "sum" in capfd.readouterr().out


def test_a_mesh_around_the_step_only_and_following_steps() -> None:
    step = rhino.parallelize(step_of(*(2 * [lambda x: jax.lax.with_sharding_constraint(x, P("data"))])))
    params, x = inputs()
    with jax.set_mesh(mesh_of(data=2, model=4)):
        params, _ = step(params, x)
        evaluate = rhino.parallelize(lambda p, x: jnp.mean((x @ p["up"] @ p["down"] - x) ** 2), follow=step)
        assert np.isfinite(float(evaluate(params, x)))
    assert step._latest is not None and step._latest.plan.mesh == (("data", 2), ("model", 4))


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(rhino.RhinoError, match="annotations 'drop' is not available"):
        rhino.parallelize(step_of(lambda v: v, lambda v: v), annotations="drop")
