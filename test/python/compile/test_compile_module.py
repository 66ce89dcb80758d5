"""Reading annotated modules, and making them fit for XLA."""

from __future__ import annotations

import re

import pytest
from annotated_modules import F32, MLP, constraint, dot, has, loop, module, on_op

from rhino.compile.module import TensorSpec, parse, read
from rhino.compile.prepare import prepare
from rhino.errors import RhinoError

IDENTITY = f"return %a : {F32}"


def one(attrs: str, type_: str = F32, mesh: str = '"x"=2, "y"=4') -> str:
    """A module that returns its only argument."""
    return module([("a", type_, attrs)], [(type_, "")], f"return %a : {type_}", mesh)


def prepared(text: str) -> str:
    return str(parse(prepare(text)[1]))


def test_signature_of_an_annotated_module() -> None:
    signature = read(parse(MLP))
    assert signature.arguments == (
        TensorSpec((16, 32), "f32", (("x",), ())),
        TensorSpec((32, 64), "f32", ((), ("y",))),
        TensorSpec((64, 32), "f32", (("y",), ())),
    )
    assert [r.sharding for r in signature.results] == [(("x",), ()), ((), ("y",))]
    assert signature.axes == (("x", 2), ("y", 4))
    assert (signature.devices, signature.donated, signature.hosts) == (8, (1,), 2)
    assert signature.device_ids == tuple(range(8))


def test_a_module_without_a_mesh_is_for_one_device() -> None:
    signature = read(
        parse("module { func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> } }")
    )
    assert (signature.axes, signature.devices, signature.arguments[0].sharding) == ((), 1, None)


def test_an_axis_used_in_parts_is_cut_into_them() -> None:
    signature = read(parse(one('sdy.sharding = #sdy.sharding<@mesh, [{"x", "y":(1)2}, {"y":(2)2}]>')))
    assert signature.axes == (("x", 2), ("y:(1)2", 2), ("y:(2)2", 2))
    assert signature.arguments[0].sharding == (("x", "y:(1)2"), ("y:(2)2",))


def test_a_whole_axis_is_all_its_parts() -> None:
    text = module(
        [("a", F32, 'sdy.sharding = #sdy.sharding<@mesh, [{"y":(1)2}, {}]>'), ("b", F32, has("y", ""))],
        [(F32, "")],
        IDENTITY,
    )
    assert read(parse(text)).arguments[1].sharding == (("y:(1)2", "y:(2)2"), ())


@pytest.mark.parametrize("element", ["bf16", "i1", "ui32", "complex<f32>", "f8E4M3FN"])
def test_element_types(element: str) -> None:
    assert read(parse(one("", f"tensor<4x{element}>"))).arguments[0].dtype == element


def test_device_ids_of_the_mesh_move_into_the_signature() -> None:
    text = one(has("x", ""), mesh='"x"=2, "y"=2], device_ids=[0, 2, 1, 3')
    assert read(parse(text)).device_ids == (0, 2, 1, 3)
    assert "device_ids" not in prepared(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the module is empty"),
        ("module { nonsense }", "line 1:10"),
        (b"ML\xefR broken", "not a valid StableHLO module"),
        ("module { func.func @f() { return } }", "no function @main"),
        (one("", "tensor<4x?xf32>"), r"argument 0 of @main has the dynamic shape tensor<4x\?xf32>"),
        (
            one(has("y", ""), "tensor<6x4xf32>"),
            "argument 0 of @main: dim 0 with size 6 is not divisible by its sharded size 4",
        ),
        (one("", "!stablehlo.token"), "argument 0 of @main has type !stablehlo.token"),
        (one("", "tensor<4xi7>"), "element type i7"),
        ("module { func.func private @main(tensor<8xf32>) }", "@main is declared but has no body"),
        (
            "module { func.func private @f() { call @f() : () -> () return } func.func @main() { return } }",
            "a function calls itself, directly or through others, among @f",
        ),
        (one("tf.aliasing_output = 3 : i32"), "an argument of @main aliases result 3 of 1"),
        (one('sdy.sharding = #sdy.sharding<mesh<["x"=2]>, [{"x"}, {}]>'), "argument 0 of @main spells out its mesh"),
        (
            one(has("x", "")).replace("func.func", 'sdy.mesh @other = <["z"=8]>\n  func.func'),
            "different meshes @mesh and @other",
        ),
    ],
)
def test_bad_modules_are_one_clear_error(text: str | bytes, message: str) -> None:
    with pytest.raises(RhinoError, match=message) as error:
        prepare(text)
    assert "\n" not in str(error.value)


def test_rhino_attributes_are_gone() -> None:
    assert "rhino." in str(parse(MLP))
    assert "rhino." not in prepared(MLP)


def test_arguments_are_closed_and_replicated_where_they_say_nothing() -> None:
    text = module(
        [("a", F32, 'sdy.sharding = #sdy.sharding<@mesh, [{"x", ?}, {?}]>'), ("b", F32, "")], [(F32, "")], IDENTITY
    )
    found = re.findall(r"%arg\d: tensor<64x64xf32> \{sdy.sharding = #sdy.sharding<@mesh, (\[.*?\])>", prepared(text))
    assert found == ['[{"x"}, {}]', "[{}, {}]"]


def test_an_alias_between_different_shardings_becomes_a_donation() -> None:
    def text(result: str) -> str:
        return module([("a", F32, has("x", "") + ", tf.aliasing_output = 0 : i32")], [(F32, result)], IDENTITY)

    assert "tf.aliasing_output = 0" in prepared(text(has("x", "")))
    assert "tf.aliasing_output" not in prepared(text(has("", "x")))
    assert "jax.buffer_donor = true" in prepared(text(has("", "x")))


def test_an_alias_between_different_shapes_becomes_a_donation() -> None:
    text = module(
        [("a", "tensor<4xf32>", has("") + ", tf.aliasing_output = 0 : i32")],
        [("tensor<8xf32>", has(""))],
        "%0 = stablehlo.concatenate %a, %a, dim = 0 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>\n"
        "return %0 : tensor<8xf32>",
    )
    assert "jax.buffer_donor = true" in prepared(text)


def test_a_private_main_is_made_public() -> None:
    assert "private" not in prepared("module { func.func private @main(%a: tensor<4xf32>) { return } }")


def test_shardings_on_ops_become_constraints_because_xla_drops_them() -> None:
    body = (
        f"%0 = stablehlo.tanh %a {on_op('', 'y')} : {F32}\n    %1 = stablehlo.add %0, %0 : {F32}\n    return %1 : {F32}"
    )
    text = prepared(module([("a", F32, has("x", ""))], [(F32, has("x", ""))], body))
    assert "sharding_per_value" not in text
    pin = re.search(r"(%\d) = sdy.sharding_constraint %0 <@mesh, \[\{\}, \{\"y\"\}\]>", text)
    assert pin is not None
    assert f"stablehlo.add {pin.group(1)}, {pin.group(1)}" in text


def test_reshards_become_constraints() -> None:
    body = constraint("0", "a", F32, "", "y").replace("sharding_constraint", "reshard") + f"return %0 : {F32}"
    text = prepared(module([("a", F32, has("x", ""))], [(F32, "")], body))
    assert "sdy.reshard" not in text
    assert 'sdy.sharding_constraint %arg0 <@mesh, [{}, {"y"}]>' in text


def test_a_sharded_carry_is_pinned_on_all_sides_of_its_loop() -> None:
    attrs = 'attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>]>}'
    body = loop(3, ("h", "a", F32), f"%next = stablehlo.tanh %h : {F32}", attrs) + f"return %out#1 : {F32}"
    text = prepared(module([("a", F32, has("x", ""))], [(F32, has("x", ""))], body))
    # The initial value, the argument of both regions, what the body hands on, the result; not the scalar counter.
    assert text.count("sdy.sharding_constraint") == 5


def test_no_line_of_the_mlp_is_lost() -> None:
    text = prepared(MLP)
    assert text.count("stablehlo.dot_general") == 2
    assert "mhlo.num_partitions = 8" in text
    assert dot("2", "1", "w2", ("a", "b", "c")).startswith("%2")
