"""Steps over NNX's objects, which are updated in place: the same numbers as `nnx.jit`, and all that a plan is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import rhino

X = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(16, 64, rngs=rngs), nnx.Linear(64, 16, rngs=rngs)])
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.layers[1](self.drop(self.norm(self.layers[0](x))))


def loss_of(model: Any, batch: Any) -> Any:
    return jnp.mean((model(batch) - batch) ** 2)


def make(seed: int = 0) -> tuple[Net, nnx.Optimizer[Net]]:
    model = Net(nnx.Rngs(seed, dropout=7))
    return model, nnx.Optimizer(model, optax.adam(1e-2, eps=1e-2), wrt=nnx.Param)


def train_step(model: Any, optimizer: Any, metrics: Any, batch: Any) -> Any:
    loss, grads = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, grads)
    metrics.update(loss=loss)
    return loss


def _metrics() -> nnx.MultiMetric:
    return nnx.MultiMetric(loss=nnx.metrics.Average("loss"))


def _values(node: Any) -> list[Any]:
    """The arrays of an object, of keys their bits."""
    leaves = jax.tree.leaves(nnx.state(node))
    return [np.asarray(jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a) for a in leaves]


def _check_alike(one: Any, other: Any) -> None:
    assert jax.tree.structure(nnx.state(one)) == jax.tree.structure(nnx.state(other))
    for a, b in zip(_values(one), _values(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


@pytest.fixture(scope="module")
def step() -> Any:
    step = rhino.parallelize(train_step, mesh="2x4", donate_argnums=(0, 1))
    step.plan(*nnx.eval_shape(make), _metrics(), X)
    return step


def test_model_optimizer_statistics_random_streams_and_metrics_are_updated_in_place(step: Any) -> None:
    expected = (*make(), _metrics())
    reference = nnx.jit(train_step)
    objects = (*step.init(make), _metrics())
    for _ in range(3):
        np.testing.assert_allclose(step(*objects, X), reference(*expected, X), rtol=1e-5)
    for one, other in zip(objects, expected, strict=True):
        _check_alike(one, other)
    np.testing.assert_allclose(objects[2].compute()["loss"], expected[2].compute()["loss"], rtol=1e-5)
    # Made by init and updated by the step: what was planned from shapes served them all.
    assert len(step._built) == 1
    kernel = objects[0].layers[0].kernel.get_value()
    assert kernel.sharding.is_equivalent_to(
        step.plan(*objects, X).in_shardings[0]["layers"][0]["kernel"].get_value(), 2
    )


def test_arguments_are_named_as_attributes_and_have_their_roles(step: Any) -> None:
    plan = step.plan(*make(), _metrics(), X)
    roles = {tensor.name: tensor.role for tensor in plan.arguments}
    assert roles["model.layers[0].kernel"] == "param" and roles["batch"] == "batch"
    assert roles["optimizer.opt_state[0].mu.layers[0].kernel"] == roles["model.norm.mean"] == "opt_state"
    assert "optimizer.opt_state[0].mu..." in plan.summary()
    assert plan.out_shardings.spec == jax.sharding.PartitionSpec()


def test_donated_objects_lose_their_old_arrays_and_others_keep_them(step: Any) -> None:
    model, optimizer = step.place(make())
    old = model.layers[0].kernel.get_value()
    step(model, optimizer, _metrics(), X)
    assert old.is_deleted()
    keeps = rhino.parallelize(lambda model, x: model.layers[0].kernel.set_value(model.layers[0].kernel[...] + x))
    old = model.layers[0].kernel.get_value()
    keeps(model, 1.0)
    assert not old.is_deleted()
    np.testing.assert_array_equal(model.layers[0].kernel[...], old + 1)


def test_what_a_step_only_reads_is_placed_once_and_not_returned(step: Any) -> None:
    model, _ = make()
    model.eval()
    expected = loss_of(model, X)
    evaluate = rhino.parallelize(loss_of, mesh="2x4")
    np.testing.assert_allclose(evaluate(model, X), expected, rtol=1e-5)
    assert len(evaluate.plan(model, X).outputs) == 1
    placed = model.layers[0].kernel.get_value()
    assert len(placed.sharding.device_set) == 8
    evaluate(model, X)
    assert model.layers[0].kernel.get_value() is placed


def test_following_steps_take_the_model_as_it_is(step: Any) -> None:
    objects = (*step.init(make), _metrics())
    step(*objects, X)
    objects[0].eval()
    evaluate = rhino.parallelize(loss_of, follow=step)
    np.testing.assert_allclose(evaluate(objects[0], X), loss_of(objects[0], X), rtol=1e-5)
    sharding = evaluate.plan(objects[0], X).in_shardings[0]["layers"][0]["kernel"].get_value()
    assert objects[0].layers[0].kernel.get_value().sharding.is_equivalent_to(sharding, 2)


def test_shared_objects_stay_shared_and_results_are_the_objects_themselves() -> None:
    def update(objects: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(loss_of)(objects["model"], batch)
        optimizer.update(grads)
        return {"loss": loss, "model": objects["model"]}

    def run(step: Any) -> tuple[Any, Any]:
        model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
        optimizer = nnx.ModelAndOptimizer(model, optax.sgd(0.1))
        for _ in range(2):
            found = step({"model": model, "scale": jnp.ones(3)}, optimizer, X)
        assert found["model"] is model and optimizer.model is model
        return found["loss"], model

    parallel = rhino.parallelize(update, mesh="8")
    (loss, model), (expected, other) = run(parallel), run(nnx.jit(update))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    _check_alike(model, other)
    names = [leaf.name for leaf in parallel._latest.trace.leaves]  # type: ignore[union-attr]
    assert names.count("objects['model'].kernel") == 1 and not any("optimizer.model" in n for n in names)


def test_new_variables_arrive_and_states_are_values() -> None:
    class Sows(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.ones((16, 16)))

        def __call__(self, x: Any) -> Any:
            self.sow(nnx.Intermediate, "hidden", x @ self.w[...])
            return x.sum()

    model = Sows()
    rhino.parallelize(lambda model, x: model(x), mesh="8")(model, X)
    np.testing.assert_allclose(model.hidden[0], X @ np.ones((16, 16)), rtol=1e-4, atol=1e-5)

    graph, state = nnx.split(nnx.Linear(16, 16, rngs=nnx.Rngs(0)))

    def scale(state: Any, x: Any) -> Any:
        return jax.tree.map(lambda w: 2 * w, state), nnx.merge(graph, state)(x)

    doubled, _ = rhino.parallelize(scale, mesh="8")(state, X)
    assert isinstance(doubled, nnx.State)
    np.testing.assert_array_equal(doubled["kernel"][...], 2 * state["kernel"][...])


@rhino.parallelize
def _count(counter: Any, by: Any) -> Any:
    counter[...] += by


def test_within_another_transformation_and_without_jit_the_step_is_the_function() -> None:
    counter = nnx.Variable(jnp.zeros(()))
    nnx.jit(lambda counter: _count(counter, 1))(counter)
    with jax.disable_jit():
        _count(counter, 2)
    assert counter[...] == 3 and not _count._built


def test_init_does_not_take_objects(step: Any) -> None:
    with pytest.raises(rhino.RhinoError, match=r"init_fn is given objects of NNX.*make them inside"):
        step.init(lambda rngs: Net(rngs), nnx.Rngs(0))


def test_experts_plan_steps_over_objects() -> None:
    plan = rhino.experts.plan("zero3", train_step, "dgx-h100:1", *nnx.eval_shape(make), _metrics(), X)
    assert len(plan.outputs) > len(plan.arguments) // 2  # the state that is updated, not the loss alone
    assert {t.name: t.role for t in plan.arguments}["optimizer.opt_state[0].nu.layers[0].kernel"] == "opt_state"


def test_other_objects_are_refused_by_name(step: Any) -> None:
    with pytest.raises(rhino.RhinoError, match=r"it has \.bias where the step has model\.drop\.rngs\.count;"):
        step.init(lambda: nnx.Linear(3, 4, rngs=nnx.Rngs(0)))
    model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
    model.kernel = nnx.Param(jnp.ones((16, 16)), ref=True)
    with pytest.raises(rhino.RhinoError, match=r"^model\.kernel is a Ref, which is no array.*give the array"):
        rhino.parallelize(lambda model, x: model(x))(model, X)


def test_checkpoints_hold_what_nnx_state_holds(step: Any, tmp_path: Path) -> None:
    objects = (*step.init(make), _metrics())
    step(*objects, X)
    rhino.checkpoint.save(tmp_path / "one", objects[:2])
    expected = [_values(node) for node in objects[:2]]
    model_before = np.asarray(objects[0].layers[0].kernel[...])
    step(*objects, X)
    model, optimizer = rhino.checkpoint.restore(tmp_path / "one", step, (0, 1))
    assert isinstance(model, Net)
    for node, values in zip((model, optimizer), expected, strict=True):
        for a, b in zip(_values(node), values, strict=True):
            np.testing.assert_array_equal(a, b)
    planned = len(step._built)
    step(model, optimizer, objects[2], X)  # what is restored is on its devices, and of the plan
    assert len(step._built) == planned
    _check_alike(model, objects[0])
    # Orbax reads it without Rhino, as it reads nnx.state.
    import orbax.checkpoint as ocp

    found = ocp.StandardCheckpointer().restore(tmp_path / "one", tuple(map(nnx.state, make(seed=3))))
    np.testing.assert_array_equal(found[0]["layers"][0]["kernel"].get_value(), model_before)


@pytest.mark.slow
def test_as_a_pipeline() -> None:
    class Deep(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layers = nnx.List([nnx.Linear(16, 16, rngs=rngs) for _ in range(4)])
            self.frozen = nnx.BatchStat(jnp.ones(16))
            self.key = nnx.RngKey(jax.random.key(3), tag="frozen")

        def __call__(self, x: Any) -> Any:
            for layer in self.layers:
                x = nnx.relu(layer(x))
            return x * self.frozen[...] + jax.random.normal(self.key[...], (16,))

    def make_deep() -> tuple[Any, Any]:
        model = Deep(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def update(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, grads = nnx.value_and_grad(loss_of)(model, batch)
        optimizer.update(model, grads)
        return loss

    step = rhino.parallelize(update, stages=2)
    assert step.plan(*nnx.eval_shape(make_deep), X).stages == 2
    objects, expected = step.init(make_deep), make_deep()
    reference = nnx.jit(update)
    for _ in range(3):
        np.testing.assert_allclose(step(*objects, X), reference(*expected, X), rtol=1e-5)
    for one, other in zip(objects, expected, strict=True):
        _check_alike(one, other)
    assert len(step._built) == 1 and len(step._latest.kept) == 2
