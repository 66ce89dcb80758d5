"""What users of `jax.jit` expect of a step: some of the devices, names of arguments, stages, methods, printing."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

import rhino

W = np.arange(64, dtype=np.float32).reshape(8, 8)


def scale(state: Any, batch: Any) -> Any:
    return state * 2, jnp.sum(batch @ state)


# --- some of the devices ----------------------------------------------------------------------------------------------


def test_some_of_the_devices() -> None:
    last = jax.devices()[4:]
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(1, 2, 3), ("replica", "data", "model"))
    for options, ids, shape in (
        ({"cluster": rhino.Cluster.local(4)}, [0, 1, 2, 3], None),
        ({"devices": 2}, [0, 1], None),
        ({"devices": last[::-1]}, [7, 6, 5, 4], None),
        ({"cluster": last[:2]}, [4, 5], None),
        ({"cluster": mesh}, [0, 1, 2, 3, 4, 5], (2, 3)),
        ({"devices": mesh, "mesh": "6"}, [0, 1, 2, 3, 4, 5], (6,)),
    ):
        step = rhino.parallelize(scale, **options)  # type: ignore[arg-type]
        found, total = step(W, W)
        np.testing.assert_allclose(found, 2 * W)
        np.testing.assert_allclose(total, np.sum(W @ W))
        plan = step.plan(W, W)
        used = plan.in_shardings[0].mesh.devices
        assert [device.id for device in used.flat] == ids and plan.devices == len(ids)
        assert {d.id for d in found.sharding.device_set} == set(ids)
        assert shape is None or used.shape == shape
        if options.get("cluster") is mesh:
            assert plan.in_shardings[0].mesh.axis_names == ("data", "model")


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        ({"data": 2, "model": 4}, {}),
        ({"data": 2, "model": 4}, {"mesh": "data=2, model=4"}),
        ({"data": 2, "model": 4}, {"mesh": {"data": 2, "model": 4}}),
        ({"a": 2, "b": 2, "c": 2}, {}),
    ],
)
def test_axes_have_the_names_of_the_users_mesh(axes: dict[str, int], options: dict[str, Any], tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes))
    step = rhino.parallelize(scale, **(options or {"devices": mesh}))
    plan = step.plan(W, W)
    assert dict(plan.mesh) == axes and f"{next(iter(axes))}=2" in plan.summary()
    assert step(W, W)[0].sharding.mesh.axis_names == tuple(axes)
    plan.save(tmp_path / "plan.json")
    plan = rhino.Plan.load(tmp_path / "plan.json")
    again = rhino.parallelize(lambda state, batch: scale(state, 2 * batch), plan=plan)
    assert dict(again.plan(W, W).mesh) == axes


def test_an_outermost_axis_of_the_users_mesh_is_over_the_stages() -> None:
    def train(params: Any, batch: Any) -> Any:
        grads = jax.grad(lambda p: jnp.mean(jnp.tanh(jnp.tanh(batch @ p[0]) @ p[1]) ** 2))(params)
        return jax.tree.map(lambda p, g: p - g, params, grads)

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("stage", "data", "model"))
    plan = rhino.parallelize(train, devices=mesh, stages=2, microbatches=2).plan([W, W], W)
    assert (plan.stages, plan.mesh) == (2, (("data", 2), ("model", 2)))


def test_a_plan_of_some_devices_is_used_on_as_many() -> None:
    plan = rhino.parallelize(scale, devices=4).plan(W, W)
    again = rhino.parallelize(scale, plan=plan)
    assert again.cluster.num_devices == 4
    np.testing.assert_allclose(again(W, W)[0], 2 * W)
    # Which devices they are is none of the plan's business.
    other = rhino.parallelize(scale, devices=jax.devices()[4:]).plan(W, W)
    assert other == plan and other.module == plan.module


def test_following_steps_run_where_the_state_is() -> None:
    train = rhino.parallelize(scale, devices=4)
    train.plan(W, W)
    same = rhino.parallelize(lambda state: state + 1, follow=train, devices=jax.devices()[:4])
    np.testing.assert_allclose(same(W), W + 1)
    assert same.cluster.num_devices == 4
    for devices in (2, jax.devices()[4:]):
        with pytest.raises(rhino.RhinoError, match=r"has its state on 4 \(local:1\).*leave devices= out"):
            rhino.parallelize(lambda state: state + 1, follow=train, devices=devices).plan(W)


@pytest.mark.slow
def test_a_pipeline_of_some_devices() -> None:
    def train(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            x = batch
            for w in params:
                x = jnp.tanh(x @ w)
            return jnp.mean(x**2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    params = [0.1 * W] * 4
    step = rhino.parallelize(train, devices=jax.devices()[2:6], stages=2)
    (found, value), (expected, wanted) = step(params, W), jax.jit(train)(params, W)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    assert {d.id for leaf in found for d in rhino.original(leaf).sharding.device_set} <= {2, 3, 4, 5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 16}, "16 devices were asked for, and jax has 8 here; set XLA_FLAGS"),
        ({"devices": 0}, "0 devices were asked for, and jax has 8 here; give a number from 1 to 8"),
        ({"devices": []}, "the list of devices is empty"),
        ({"devices": ["cpu"]}, "'cpu' is no device; give a number, a list"),
        ({"devices": 2, "cluster": "cpu"}, "cluster= and devices= both say where to run"),
        ({"cluster": AbstractMesh((2,), ("x",))}, "an AbstractMesh has no devices"),
        ({"mesh": "data=2,data=4"}, "is not a list of positive sizes, with names of their own"),
        ({"mesh": {"data": 0}}, r"is not a list of positive sizes.*write it as \(2, 4\)"),
    ],
)
def test_refused_devices(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rhino.RhinoError, match=message):
        rhino.parallelize(scale, **options).plan(W, W)
    twice = [jax.devices()[0]] * 2
    with pytest.raises(rhino.RhinoError, match="is given twice"):
        rhino.Cluster.local(twice)


# --- arguments by name ------------------------------------------------------------------------------------------------


def test_static_and_donated_arguments_by_name() -> None:
    def update(state: Any, batch: Any, mode: str, *, rate: Any, repeats: int = 1) -> Any:
        for _ in range(repeats):
            state = state + rate * batch
        return {mode: state}

    step = rhino.parallelize(update, mesh="8", static_argnames=("mode", "repeats"), donate_argnames="state")
    shardings = step.plan(W, W, "a", rate=3.0, repeats=2).in_shardings
    for mode in ({"mode": "a"}, {"mode": "b"}):
        state, batch = jax.device_put((W, W), shardings)
        np.testing.assert_allclose(step(state, batch, **mode, rate=3.0, repeats=2)[mode["mode"]], 7 * W)
        assert state.is_deleted() and not batch.is_deleted()
    np.testing.assert_allclose(step(W, W, "a", rate=1.0)["a"], 2 * W)
    with pytest.raises(rhino.RhinoError, match="static argument 'repeats' has the unhashable type list"):
        step(W, W, "a", rate=1.0, repeats=[1])
    with pytest.raises(
        rhino.RhinoError, match="donate_argnames has 'states', but the function's parameters are: state"
    ):
        rhino.parallelize(update, donate_argnames="states")
    with pytest.raises(rhino.RhinoError, match="argument 'rate' is both static and donated"):
        rhino.parallelize(update, static_argnames="rate", donate_argnames="rate")


def test_one_of_the_keywords_is_donated() -> None:
    step = rhino.parallelize(lambda *, old, new: old + new, mesh="8", donate_argnames="old")
    shardings = step.plan(old=W, new=W).keyword_shardings
    old, new = jax.device_put((W, W), (shardings["old"], shardings["new"]))
    np.testing.assert_allclose(step(old=old, new=new), 2 * W)
    assert old.is_deleted() and not new.is_deleted()


# --- stages of jax.jit ------------------------------------------------------------------------------------------------


def test_trace_lower_and_compile_as_of_jax_jit() -> None:
    step = rhino.parallelize(scale, mesh="8", donate_argnums=0)
    traced = step.trace(W, W)
    assert not step._built and traced.fun_name == "scale"
    assert len(traced.jaxpr.in_avals) == 2 and traced.out_info[0].shape == (8, 8)
    assert [info.donated for info in jax.tree.leaves(traced.args_info)] == [True, False]
    lowered = traced.lower()
    assert "sdy.mesh" in lowered.as_text() and lowered.as_text("stablehlo") == step.plan(W, W).module
    assert lowered.cost_analysis()["flops"] > 0
    assert lowered.in_tree == jax.jit(scale).lower(W, W).in_tree
    compiled = lowered.compile()
    assert "HloModule" in compiled.as_text() and compiled.cost_analysis()["flops"] > 0
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes == memory.argument_bytes > 0
    np.testing.assert_allclose(compiled(W, W)[0], 2 * W)
    assert step.compile(W, W) is compiled
    assert lowered.compile({"xla_cpu_enable_fast_math": False}) is not compiled
    with pytest.raises(rhino.RhinoError, match="dialect 'hlo': a plan is StableHLO"):
        lowered.as_text("hlo")


def test_shapes_without_a_plan_and_forgotten_plans() -> None:
    step = rhino.parallelize(lambda x, n: x[:n], static_argnums=1, mesh="8")
    assert step.eval_shape(W, 4).shape == (4, 8) and not step._built
    assert jax.eval_shape(lambda x: step(x, 4), W).shape == (4, 8) and not step._built
    step(W, 8)
    assert step._built
    step.clear_cache()
    assert not step._built
    with pytest.raises(rhino.RhinoError, match="place needs a plan"):
        step.place(W)


def test_without_jit_and_within_other_transformations() -> None:
    seen: list[Any] = []

    @rhino.parallelize
    def square(x: Any) -> Any:
        seen.append(x)
        return jnp.sum(x * x)

    with jax.disable_jit():
        assert square(W) == np.sum(W * W)
    assert seen[0] is W and not square._built
    np.testing.assert_allclose(jax.grad(square)(W), 2 * W)
    np.testing.assert_allclose(jax.jit(lambda x: square(x) + 1)(W), np.sum(W * W) + 1)
    np.testing.assert_allclose(jax.vmap(square)(W), np.sum(W * W, 1))
    assert not square._built
    # Once it has run, too.
    square(jax.device_put(W, square.plan(W).in_shardings[0]))
    np.testing.assert_allclose(jax.grad(square)(W), 2 * W)
    np.testing.assert_allclose(jax.jit(square)(W), np.sum(W * W))


# --- what a step can be -----------------------------------------------------------------------------------------------


def test_methods_partials_and_callables() -> None:
    @jax.tree_util.register_pytree_node_class
    class Model:
        def __init__(self, w: Any) -> None:
            self.w = w

        def tree_flatten(self) -> Any:
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, _: Any, leaves: Any) -> Any:
            return cls(*leaves)

        @rhino.parallelize(mesh="8")
        def apply(self, x: Any) -> Any:
            return x @ self.w

        def __call__(self, x: Any) -> Any:
            return x @ self.w

    model = Model(W)
    np.testing.assert_allclose(model.apply(W), W @ W)
    assert len(model.apply.plan(W).arguments) == 2 and model.apply.lower(x=W).compile() is model.apply.compile(W)
    np.testing.assert_allclose(rhino.parallelize(model, mesh="8")(W), W @ W)
    half = functools.partial(scale, batch=W)
    step = rhino.parallelize(half, mesh="8")
    np.testing.assert_allclose(step(W)[0], 2 * W)
    assert "parallelize scale(state, batch)" in repr(step) and "Model(x)" in repr(rhino.parallelize(model))


# --- for people -------------------------------------------------------------------------------------------------------


def test_steps_and_plans_print_short_and_report(tmp_path: Path) -> None:
    step = rhino.parallelize(scale, mesh="8")
    assert repr(step) == "<rhino.parallelize scale(state, batch) on this process's devices: not planned yet>"
    plan = step.plan(W, W)
    assert repr(step) == "<rhino.parallelize scale(state, batch) on local:1: mesh 8>"
    assert str(plan) == plan.summary()
    assert repr(plan).startswith("<Plan for local:1: mesh 8, 2 arguments, ") and len(repr(plan)) < 120
    html = plan._repr_html_()
    assert html.startswith("<iframe srcdoc=") and "&lt;!doctype html&gt;" in html
    assert plan.report_html(tmp_path / "plan.html") == (tmp_path / "plan.html").read_text() == plan.report_html()
    with pytest.raises(rhino.RhinoError, match=r"plan\.html: cannot write: No such file or directory"):
        plan.report_html(tmp_path / "nowhere" / "plan.html")
