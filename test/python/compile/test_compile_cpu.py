"""Executables for virtual CPU devices: values, donation, what the partitioner made of annotations, jitted functions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from annotated_modules import BYTES, F32, MESH_2X4, MLP, constraint, dot, has, loop, module, on_op
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rhino.compile
from rhino.compile import collective_bytes, collective_counts, compile_lowered, compile_module
from rhino.errors import RhinoError

THREE = (F32, F32, F32)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def mlp_arguments() -> tuple[np.ndarray[Any, Any], ...]:
    return random(16, 32), random(32, 64), random(64, 32)


def test_mlp_on_eight_devices_equals_numpy() -> None:
    executable = compile_module(MLP)
    x, w1, w2 = mlp_arguments()
    y, w = executable(x, w1, w2)
    np.testing.assert_allclose(y, np.tanh(x @ w1) @ w2, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(w, 2 * w1)
    assert len(y.sharding.device_set) == 8
    assert y.sharding.spec == P("x", None)
    assert (executable.target, executable.devices) == ("cpu", 8)
    assert executable.seconds > 0


def test_memory_is_per_device() -> None:
    memory = compile_module(MLP).memory_analysis()
    assert memory.argument_bytes == 8 * 32 * 4 + 32 * 16 * 4 + 16 * 32 * 4
    assert memory.alias_bytes == 32 * 16 * 4
    assert memory.output_bytes >= 8 * 32 * 4 + 32 * 16 * 4
    assert memory.peak_bytes == memory.argument_bytes + memory.output_bytes + memory.temp_bytes - memory.alias_bytes


def test_donated_arguments_are_consumed() -> None:
    executable = compile_module(MLP)
    shardings = executable.compiled.input_shardings[0]
    arguments = [jax.device_put(a, s) for a, s in zip(mlp_arguments(), shardings, strict=True)]
    executable(*arguments)
    assert [a.is_deleted() for a in arguments] == [False, True, False]


def test_bytecode_is_a_module_too() -> None:
    from rhino.compile.prepare import prepare

    executable = compile_module(prepare(MLP)[1])
    np.testing.assert_allclose(executable(*mlp_arguments())[1], 2 * mlp_arguments()[1])


def test_tensor_parallel_mlp_is_one_all_reduce() -> None:
    rows = compile_module(MLP).collectives()
    assert [(r.kind, r.count, r.bytes, r.group_size) for r in rows] == [("all-reduce", 1, 2 * 8 * 32 * 4 * 3 // 4, 4)]
    assert rows[0].groups == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_data_parallel_gradients_are_all_reduced() -> None:
    body = dot("0", "a", "b", THREE, "[0] x [0]", on_op("", "")) + f"return %0 : {F32}"
    text = module([("a", F32, has("x,y", "")), ("b", F32, has("x,y", ""))], [(F32, has("", ""))], body)
    executable = compile_module(text)
    assert collective_bytes(executable.collectives()) == {"all-reduce": 2 * BYTES * 7 // 8}
    a, b = random(64, 64), random(64, 64)[::-1].copy()
    np.testing.assert_allclose(executable(a, b)[0], a.T @ b, rtol=1e-3, atol=1e-3)


def test_gathered_weight_is_one_all_gather_of_the_full_tensor() -> None:
    body = constraint("g", "w", F32, "", "") + dot("0", "a", "g", THREE, attrs=on_op("x", "")) + f"return %0 : {F32}"
    text = module([("w", F32, has("y", "")), ("a", F32, has("x", ""))], [(F32, has("x", ""))], body)
    assert collective_bytes(compile_module(text).collectives()) == {"all-gather": BYTES * 3 // 4}


def test_moving_an_axis_to_another_dim_is_an_all_to_all() -> None:
    body = f"%0 = stablehlo.tanh %a {on_op('', 'x,y')} : {F32}\n    return %0 : {F32}"
    text = module([("a", F32, has("x,y", ""))], [(F32, has("", "x,y"))], body)
    rows = compile_module(text).collectives()
    assert [(r.kind, r.count, r.bytes, r.group_size) for r in rows] == [("all-to-all", 1, BYTES * 7 // 64, 8)]


def test_a_sharding_on_an_op_decides_how_it_is_computed() -> None:
    # Propagation alone would keep the convert sharded and all-reduce the dot; the annotation asks for the gather.
    def text(attrs: str) -> str:
        half = F32.replace("f32", "bf16")
        body = (
            f"%c = stablehlo.convert %w {attrs} : ({F32}) -> {half}\n    "
            + dot("0", "a", "c", (half,) * 3, attrs=on_op("x", ""))
            + f"return %0 : {half}"
        )
        return module([("w", F32, has("y", "")), ("a", half, has("x", ""))], [(half, has("x", ""))], body)

    assert collective_counts(compile_module(text("")).collectives()) == {"all-reduce": 1}
    assert collective_counts(compile_module(text(on_op("", ""))).collectives()) == {"all-gather": 1}


def test_annotations_reach_the_partitioner_inside_loops_and_trips_count() -> None:
    attrs = 'attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>]>}'
    step = dot("d", "h", "v", THREE, attrs=on_op("x", "y")) + dot("next", "d", "w", THREE, attrs=on_op("x", ""))
    body = loop(5, ("h", "a", F32), step, attrs) + f"return %out#1 : {F32}"
    text = module(
        [("a", F32, has("x", "")), ("v", F32, has("", "y")), ("w", F32, has("y", ""))], [(F32, has("x", ""))], body
    )
    executable = compile_module(text)
    rows = executable.collectives()
    assert [(r.kind, r.count, r.bytes) for r in rows] == [("all-reduce", 5, 5 * 2 * (BYTES // 2) * 3 // 4)]
    a, v, w = (random(64, 64) / 8 for _ in range(3))
    expected = a
    for _ in range(5):
        expected = expected @ v @ w
    np.testing.assert_allclose(executable(a, v, w)[0], expected, rtol=1e-3, atol=1e-3)


def test_the_plan_of_a_carry_is_followed_against_propagation() -> None:
    # The body wants the carry on y; without the annotation of the loop, XLA shards it over x and y.
    def counts(attrs: str) -> dict[str, int]:
        step = f"%t = stablehlo.tanh %h {on_op('', 'y')} : {F32}\n      "
        step += f"%next = stablehlo.add %t, %t {on_op('x', '')} : {F32}"
        body = loop(5, ("h", "a", F32), step, attrs) + f"return %out#1 : {F32}"
        text = module([("a", F32, has("x", ""))], [(F32, has("x", ""))], body)
        return collective_counts(compile_module(text).collectives())

    attrs = 'attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>]>}'
    assert sum(counts(attrs).values()) % 5 == 0  # all of it inside the loop
    assert sum(counts("").values()) % 5 == 1  # and a repair after it


def test_mesh_order_of_devices_is_obeyed() -> None:
    text = module([("a", "tensor<8xf32>", has("x"))], [("tensor<8xf32>", has("x"))], "return %a : tensor<8xf32>")
    text = text.replace(f"<[{MESH_2X4}]>", '<["x"=4], device_ids=[3, 1, 2, 0]>')
    (result,) = compile_module(text)(np.arange(8, dtype=np.float32))
    held = {shard.device.id: shard.data[0].item() for shard in result.addressable_shards}
    assert held == {3: 0.0, 1: 2.0, 2: 4.0, 0: 6.0}


def test_sub_axes_place_data_where_shardy_says() -> None:
    attrs = 'sdy.sharding = #sdy.sharding<@mesh, [{"y":(2)2}]>'
    text = module(
        [("a", "tensor<4xf32>", attrs)], [("tensor<4xf32>", attrs)], "return %a : tensor<4xf32>", mesh='"y"=4'
    )
    (result,) = compile_module(text)(np.arange(4, dtype=np.float32))
    held = {shard.device.id: shard.data[0].item() for shard in result.addressable_shards}
    assert held == {0: 0.0, 1: 2.0, 2: 0.0, 3: 2.0}  # the inner part alternates from device to device


def test_wide_types_are_not_narrowed() -> None:
    text = "module { func.func @main(%a: tensor<2xf64>) -> tensor<2xf64> { return %a : tensor<2xf64> } }"
    (result,) = compile_module(text)(np.array([1 / 3, 2.0**60]))
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, np.array([1 / 3, 2.0**60]))


def test_a_step_without_arguments_runs() -> None:
    body = "%0 = stablehlo.constant dense<7.0> : tensor<8xf32>\n    return %0 : tensor<8xf32>"
    np.testing.assert_array_equal(compile_module(module([], [("tensor<8xf32>", has("x"))], body))()[0], np.full(8, 7.0))


def test_json_has_the_fixed_keys() -> None:
    data = compile_module(MLP).to_json()
    memory = "peak_bytes argument_bytes output_bytes temp_bytes alias_bytes host_bytes"
    assert list(data) == f"target devices {memory} collectives summed_later gathered_earlier seconds".split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": "h101"},
            "unknown target 'h101'; did you mean h100. known targets: cpu, cuda, v100, a100, h100, h200, b200",
        ),
        ({"devices": 4}, r"mesh \(x=2 x y=4\) has 8 devices, and 4 were asked for"),
        ({"target": "cuda"}, "no cuda devices here"),
        ({"options": {"no_such_option": True}}, "XLA cannot compile the module for cpu: .*no_such_option"),
    ],
)
def test_requests_that_cannot_be_met(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RhinoError, match=message):
        compile_module(MLP, **options)


def test_more_devices_than_there_are() -> None:
    text = module([("a", F32, has("x", ""))], [(F32, has("x", ""))], f"return %a : {F32}", mesh='"x"=16')
    with pytest.raises(RhinoError, match="16 CPU devices are needed, and this process has 8; call"):
        compile_module(text)


def test_no_mesh_for_several_devices() -> None:
    text = "module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> } }"
    with pytest.raises(RhinoError, match="no mesh, so it cannot be compiled for 4 devices; annotate it first"):
        compile_module(text, devices=4)


def test_what_xla_refuses_is_one_clear_error() -> None:
    body = (
        "%0 = stablehlo.custom_call @no_such_kernel(%a) {api_version = 4 : i32} : (tensor<4xf32>) -> tensor<4xf32>\n"
        "    return %0 : tensor<4xf32>"
    )
    with pytest.raises(RhinoError, match=r"XLA cannot compile the module for cpu: .*no_such_kernel"):
        compile_module(module([("a", "tensor<4xf32>", has("x"))], [("tensor<4xf32>", has("x"))], body))


def test_devices_are_made_in_a_fresh_process() -> None:
    program = (
        "import os; os.environ.pop('XLA_FLAGS', None); import rhino.compile as c\n"
        "c.ensure_cpu_devices(5); import jax; assert len(jax.devices('cpu')) == 5\n"
        "try:\n    c.ensure_cpu_devices(6)\n"
        "except c._jax.RhinoError as e:\n    print(e)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("6 CPU devices are needed, and this process has 5"), done.stderr


# --- compile_lowered ------------------------------------------------------------------------------------------------


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))


def step(state: dict[str, Any], x: Any) -> tuple[dict[str, Any], Any]:
    y = jnp.tanh(x @ state["w"]) * 2.0
    return {"w": state["w"] + 1.0, "key": jax.random.split(state["key"], 1)[0]}, y


def lowered(w: P, x: P) -> jax.stages.Lowered:
    state = {"w": NamedSharding(mesh(), w), "key": NamedSharding(mesh(), P())}
    batch = NamedSharding(mesh(), x)
    jitted = jax.jit(step, in_shardings=(state, batch), out_shardings=(state, batch), donate_argnums=0)
    abstract = {"w": jax.ShapeDtypeStruct((32, 64), jnp.float32), "key": jax.eval_shape(lambda: jax.random.key(0))}
    return jitted.lower(abstract, jax.ShapeDtypeStruct((16, 32), jnp.float32))


def test_a_lowered_function_keeps_its_pytrees_keys_and_donation() -> None:
    base = lowered(P(None, "y"), P("x"))
    executable = compile_lowered(base, base.as_text())
    state = {"w": jnp.asarray(random(32, 64)), "key": jax.random.key(3)}
    x, before = random(16, 32), np.asarray(state["w"])
    placed = jax.device_put((state, x), executable.compiled.input_shardings[0])
    new, y = executable(*placed)
    np.testing.assert_allclose(y, np.tanh(x @ before) * 2.0, rtol=1e-4, atol=1e-4)
    assert jnp.issubdtype(new["key"].dtype, jax.dtypes.prng_key)
    assert placed[0]["w"].is_deleted()
    assert executable.target == "cpu"


def test_the_program_of_a_lowered_function_is_replaced() -> None:
    base = lowered(P(None, "y"), P("x"))
    text = base.as_text()
    assert "stablehlo.tanh" in text
    executable = compile_lowered(base, text.replace("stablehlo.tanh", "stablehlo.negate"))
    state = {"w": jnp.asarray(random(32, 64)), "key": jax.random.key(3)}
    x, before = random(16, 32), np.asarray(state["w"])
    _, y = executable(*jax.device_put((state, x), executable.compiled.input_shardings[0]))
    np.testing.assert_allclose(y, -(x @ before) * 2.0, rtol=1e-4, atol=1e-4)
    assert base.as_text() == text  # the lowered function itself is untouched


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("tensor<16x32xf32>", "tensor<16x16xf32>"), "not a valid StableHLO module"),
        (('"x"=2, "y"=4', '"x"=2, "y"=2'), "lowered for 8 devices, the module for 4"),
        (('[{}, {"y"}]', '[{"y"}, {}]'), r"argument 1 is sharded .* in the module and .* in the lowered function"),
    ],
)
def test_a_module_of_another_signature_is_refused(change: tuple[str, str], message: str) -> None:
    base = lowered(P(None, "y"), P("x"))
    with pytest.raises(RhinoError, match=message):
        compile_lowered(base, base.as_text().replace(*change))


def test_a_module_with_other_arguments_is_refused() -> None:
    with pytest.raises(RhinoError, match=r"@main of the module has 3 arguments, the lowered function 2"):
        two = jax.jit(lambda a, b: a + b, in_shardings=NamedSharding(mesh(), P()))
        compile_lowered(two.lower(random(4), random(4)), MLP)


def test_public_names_load() -> None:
    assert all(getattr(rhino.compile, name) is not None for name in rhino.compile.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = rhino.compile.nope
