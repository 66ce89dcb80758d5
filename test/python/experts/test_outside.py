"""Plans by hand in every form that users have them: the same plan, priced as experts are, compiled as by `jax.jit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dense import Step, chain
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rhino
from rhino import RhinoError, RhinoWarning
from rhino.compile.collectives import collective_bytes, read_collectives
from rhino.experts import Specs
from rhino.machine import Cluster

CPU = Cluster.load("cpu:1")
AXES = {"data": 2, "model": 4}


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))


MLP = chain((64, 256, 64), 32)
ROWS = {"w0": P(None, "model"), "w1": P("model", None)}


def planned(specs: Specs | Path, step: Step = MLP) -> rhino.Plan:
    return rhino.experts.plan(specs, step[0], CPU, *step[1], donate_argnums=0)


def test_all_forms_are_one_plan(tmp_path: Path) -> None:
    on = mesh()
    shardings = {name: NamedSharding(on, spec) for name, spec in ROWS.items()}
    file = tmp_path / "specs.json"
    file.write_text(
        '{"mesh": {"data": 2, "model": 4}, "tensors": {"weights/w0": [null, "model"]},'
        ' "rules": [["w1", ["model", null]], ["^x$", ["data"]]]}'
    )
    logical = [("batch", "data"), ("wide", "model"), ("narrow", None)]
    names = {"w0": ("narrow", "wide"), "w1": P("wide", "narrow")}
    forms = [
        Specs(on, tree=(ROWS, P("data"))),
        Specs(tree=(shardings, NamedSharding(on, P("data")))),
        Specs(AXES, rules=[("w0", P(None, "model")), ("w1", P("model")), ("^x$", P("data", None))]),
        Specs(AXES, tree=(names, ("batch",)), axis_rules=logical),
        Specs(
            AXES, rules=[("w0", ["narrow", "wide"]), ("w1", ["wide", "narrow"]), ("x", ["batch"])], axis_rules=logical
        ),
        file,
    ]
    plans = [planned(form) for form in forms]
    assert all(plan == plans[0] for plan in plans[1:])
    assert [tensor.sharding for tensor in plans[0].arguments] == [
        ((), ("model",)),
        (("model",), ()),
        (("data",), ()),
    ]
    assert plans[0].in_shardings[0]["w0"].spec == P(None, "model")
    # The weights come back as they were given.
    assert plans[0].outputs[0].sharding == ((), ("model",))


def test_the_same_specs_of_a_module(tmp_path: Path) -> None:
    file = tmp_path / "step.mlir"
    step, args = MLP
    file.write_text(str(jax.jit(step, donate_argnums=0).lower(*args).compiler_ir("stablehlo")))
    rules = Specs(AXES, tensors={"arg0": P(None, "model"), "arg1": P("model"), "arg2": P("data")})
    assert rhino.experts.plan(rules, file, CPU).predicted == planned(Specs(AXES, tree=(ROWS, P("data")))).predicted
    with pytest.raises(RhinoError, match="a module has no pytrees, of which the specs are; give rules"):
        rhino.experts.plan(Specs(AXES, tree=(ROWS,)), file, CPU)


def test_a_prefix_of_the_tree_holds_for_all_below_it() -> None:
    assert planned(Specs(AXES, tree=(P(None, "model"), P("data")))).arguments[1].sharding == ((), ("model",))
    with pytest.warns(RhinoWarning, match="2 arguments have no spec and are whole on every device: weights"):
        plan = planned(Specs(AXES, tree=(None, P("data"))))
    assert plan.arguments[0].sharding == ((), ())


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (Specs(AXES, tree=({"w9": P()}, P())), "the specs have 0/w9, and no argument is there"),
        (Specs(AXES, tree={"w0": P()}), "the specs are a dict, and not one of each argument; give a tuple"),
        (Specs(AXES, tree=(P(), P(), P())), "there are specs of 3 arguments, and the step takes 2"),
        (Specs(AXES, tree=({"w0": 3}, P())), "the specs have 3 at 0/w0; give PartitionSpecs or NamedShardings"),
        (Specs(tree=(P(), P())), "the specs have no mesh"),
        (Specs({"data": 4}, tree=(P("data"),)), "the specs' mesh data=4 has 4 devices, and cluster cpu:1 has 8"),
    ],
)
def test_trees_that_do_not_fit(specs: Specs, message: str) -> None:
    with pytest.raises(RhinoError, match=message):
        planned(specs)


def test_shardings_over_two_meshes() -> None:
    other = NamedSharding(Mesh(np.array(jax.devices()[:8]), ("x",)), P("x"))
    with pytest.raises(RhinoError, match="the specs are over two meshes"):
        planned(Specs(tree=(other, NamedSharding(mesh(), P("data")))))
    with pytest.raises(RhinoError, match=r"the specs are over the mesh {'x': 8}, and not {'data': 2, 'model': 4}"):
        planned(Specs(AXES, tree=(other, other)))


# --- the price --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(512, 2048, 512), (512, 2048, 512, 2048, 512)])
def test_megatron_by_hand_has_the_price_of_the_expert(widths: tuple[int, ...]) -> None:
    step = chain(widths, 256)
    expert = rhino.experts.plan("megatron", step[0], CPU, *step[1], donate_argnums=0)
    rows = [(f"w{i}", P("model", None) if i % 2 else P(None, "model")) for i in range(len(widths) - 1)]
    with pytest.warns(RhinoWarning, match="1 argument has no spec"):
        plan = planned(Specs({"model": 8}, rules=rows), step)
    assert [tensor.sharding for tensor in plan.arguments] == [tensor.sharding for tensor in expert.arguments]
    assert plan.predicted == expert.predicted


def _normed(seq: int = 16) -> Step:
    """An embedding, norms and two products with Adam: what Shardy meets in models, small."""
    tx = optax.adam(1e-3)

    def init() -> Any:
        shapes = {"wte": (64, 32), "wpe": (seq, 32), "up": (32, 128), "down": (128, 32), "scale": (32,)}
        params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
        return {"params": params, "opt": tx.init(params)}

    def step(state: Any, tokens: jax.Array) -> Any:
        def loss(p: Any) -> jax.Array:
            h = p["wte"][tokens] + p["wpe"][None]
            n = (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-5) * p["scale"]
            h = h + jax.nn.gelu(n @ p["up"]) @ p["down"]
            return -jnp.take_along_axis(jax.nn.log_softmax(h @ p["wte"].T), tokens[..., None], -1).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    return step, (jax.eval_shape(init), jax.ShapeDtypeStruct((16, seq), jnp.int32))


RULES = {
    "data": [("tokens", P("data"))],
    "megatron": [("up$", P(None, "model")), ("down$", P("model")), ("wte$", P("model")), ("tokens", P("data"))],
    "fsdp": [("(up|down|wte|wpe)$", P("data")), ("tokens", P("data"))],
    "both": [("up$", P("data", "model")), ("down$", P("model", "data")), ("tokens", P("data"))],
}


@pytest.mark.filterwarnings("ignore::rhino.RhinoWarning")
@pytest.mark.parametrize(
    "which", ["both", *(pytest.param(w, marks=pytest.mark.long) for w in ("data", "fsdp", "megatron"))]
)
def test_xla_compiles_what_jit_with_these_shardings_would(which: str) -> None:
    step, args = _normed()
    on = mesh()
    specs = Specs(on, rules=RULES[which])
    found = rhino.compare(specs, step, CPU, *args, donate_argnums=0, measure=True)
    measured = found.others[0].measured
    assert measured is not None
    state, tokens = found.others[0].plan.in_shardings
    jitted = jax.jit(step, in_shardings=(state, tokens), out_shardings=(state, None), donate_argnums=0)
    compiled = jitted.lower(*args).compile()
    collectives = collective_bytes(read_collectives(compiled.as_text()))
    assert dict(measured.comm_bytes) == collectives
    assert measured.memory["temp_bytes"] == compiled.memory_analysis().temp_size_in_bytes
    # What is predicted is of that program, where axes contradict each other to a third.
    predicted = found.others[0].plan.predicted.comm_bytes
    assert sum(predicted.values()) == pytest.approx(sum(collectives.values()), rel=0.33)


def test_constraints_in_the_step_are_kept() -> None:
    on = mesh()
    inner = NamedSharding(on, P("data", "model"))

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def body(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.with_sharding_constraint(h @ w, inner), None

        return jax.lax.scan(body, x, None, length=3)[0]

    args = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32)
    with pytest.warns(RhinoWarning, match="1 argument has no spec"):
        plan = rhino.experts.plan(Specs(on, rules=[("x", P("data"))]), step, CPU, *args)
    assert "sdy.reshard" in plan.module
    assert plan.predicted.comm_bytes
    measured = rhino.compare(Specs(on, rules=[("x", P("data"))]), step, CPU, *args, measure=True).others[0].measured
    compiled = jax.jit(step, in_shardings=(None, NamedSharding(on, P("data")))).lower(*args).compile()
    assert measured is not None
    assert dict(measured.comm_bytes) == collective_bytes(read_collectives(compiled.as_text()))


@pytest.mark.filterwarnings("ignore::rhino.RhinoWarning")
def test_what_propagation_splits_over_parts_of_an_axis_is_priced_and_said(tmp_path: Path) -> None:
    step = tmp_path / "step.mlir"
    step.write_text("""
      func.func public @main(%x: tensor<64x32xf32>, %w: tensor<32x32xf32>) -> tensor<64x4x8xf32> {
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
            : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
        %1 = stablehlo.reshape %0 : (tensor<64x32xf32>) -> tensor<64x4x8xf32>
        %2 = stablehlo.tanh %1 : tensor<64x4x8xf32>
        return %2 : tensor<64x4x8xf32>
      }
    """)
    with pytest.warns(RhinoWarning, match="splits a dimension along several factors of a reshape"):
        plan = rhino.experts.plan(Specs({"model": 8}, tensors={"arg1": P(None, "model")}), step, CPU)
    assert '[{}, {"model":(1)4}, {"model":(4)2}]' in plan.module
    assert plan.predicted.step_time_s > 0


def test_a_plan_by_hand_trains_as_one_device_does() -> None:
    step, _ = MLP
    keys = jax.random.split(jax.random.key(0), 3)
    weights = {"w0": jax.random.normal(keys[0], (64, 256)) / 8, "w1": jax.random.normal(keys[1], (256, 64)) / 16}
    x = jax.random.normal(keys[2], (32, 64))
    specs = Specs(AXES, rules=[("w0", P(None, "model")), ("w1", P("model")), ("x", P("data"))])
    local = Cluster.local()
    plan = rhino.experts.plan(specs, step, local, weights, x)
    found, loss = rhino.parallelize(step, plan=plan, cluster=local)(weights, x)
    wanted, value = jax.jit(step)(weights, x)
    assert found["w0"].sharding.spec == P(None, "model")
    np.testing.assert_allclose(loss, value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, wanted)


# --- models that carry names ------------------------------------------------------------------------------------------

LOGICAL = [("batch", "data"), ("mlp", "model"), ("embed", None)]


class Boxed(nn.Module):
    """Two layers whose kernels carry logical names in Flax's boxes."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def kernel(*names: str) -> Any:
            return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)

        x = nn.relu(nn.Dense(256, kernel_init=kernel("embed", "mlp"))(x))
        return nn.Dense(64, kernel_init=kernel("mlp", "embed"))(x)


def test_boxes_of_flax_say_the_names_of_parameters_and_optimizer_state() -> None:
    model, tx = Boxed(), optax.adam(1e-3)

    def init() -> Any:
        params = model.init(jax.random.key(0), jnp.zeros((8, 64)))
        return {"params": params, "opt": tx.init(params)}

    def step(state: Any, x: jax.Array) -> Any:
        grads = jax.grad(lambda p: (model.apply(p, x) ** 2).mean())(state["params"])
        updates, opt = tx.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}

    state = jax.eval_shape(init)
    args = state, jax.ShapeDtypeStruct((32, 64), jnp.float32)
    with pytest.warns(RhinoWarning, match="7 arguments have no spec"):
        plan = rhino.experts.plan(Specs(AXES, axis_rules=LOGICAL), step, CPU, *args)
    split = [tensor.name for tensor in plan.arguments if tensor.sharding == ((), ("model",))]
    assert [name.endswith("['Dense_0']['kernel'].value") for name in split] == [True] * 3
    names = nn.get_partition_spec(state)
    by_tree = rhino.experts.plan(Specs(AXES, tree=(names, P("batch")), axis_rules=LOGICAL), step, CPU, *args)
    assert by_tree.arguments[-1].sharding == (("data",), ())
    assert by_tree.arguments[:-1] == plan.arguments[:-1]


class Variables(nnx.Module):
    """The same in NNX, whose variables carry the names."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        def kernel(*names: str) -> Any:
            return nnx.with_partitioning(nnx.initializers.lecun_normal(), names)

        self.up = nnx.Linear(64, 256, kernel_init=kernel("embed", "mlp"), rngs=rngs)
        self.down = nnx.Linear(256, 64, kernel_init=kernel("mlp", "embed"), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.relu(self.up(x)))


def test_variables_of_nnx_say_the_names() -> None:
    with nnx.use_eager_sharding(False):
        model = Variables(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    def step(model: Variables, optimizer: nnx.Optimizer[Any], x: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    args = model, optimizer, jax.ShapeDtypeStruct((32, 64), jnp.float32)
    with nnx.use_eager_sharding(False):
        with pytest.warns(RhinoWarning, match="1 argument has no spec"):
            plan = rhino.experts.plan(Specs(AXES, axis_rules=LOGICAL), step, CPU, *args)
        tree = nnx.get_partition_spec(nnx.state(model)), nnx.get_partition_spec(nnx.state(optimizer)), P("batch")
        by_tree = rhino.experts.plan(Specs(AXES, tree=tree, axis_rules=LOGICAL), step, CPU, *args)
    layouts = {tensor.name: tensor.sharding for tensor in plan.arguments}
    assert layouts["model.up.kernel"] == ((), ("model",))
    assert layouts["model.down.kernel"] == (("model",), ())
    assert sum(sharding == ((), ("model",)) for sharding in layouts.values()) == 3
    assert by_tree.arguments[-1].sharding == (("data",), ())
    assert by_tree.arguments[:-1] == plan.arguments[:-1]
