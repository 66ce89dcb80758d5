"""Shardings and meshes as plain Python: building gives Shardy's text, reading gives back what was built."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from rhino.dialect import functions, sdy
from rhino.dialect.context import make_context, parse_text

AXIS = st.sampled_from(["x", "y", "x:(1)2", "y:(2)4", "expert axis"])
DIMS = st.lists(st.lists(AXIS, max_size=3, unique=True), max_size=4)


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return make_context()


@settings(deadline=None, max_examples=50)
@given(dims=DIMS, open=st.booleans())
def test_a_sharding_reads_back_as_built(context: ir.Context, dims: list[list[str]], open: bool) -> None:
    built = sdy.tensor_sharding(context, "mesh", dims, open)
    parsed = ir.Attribute.parse(str(built), context)
    assert built == parsed
    assert sdy.dims_of(parsed) == tuple(map(tuple, dims))
    assert sdy.closed_dims(parsed) == (not open,) * len(dims)
    assert sdy.mesh_of(parsed) == "mesh"


def test_text_of_a_sharding(context: ir.Context) -> None:
    assert str(sdy.tensor_sharding(context, "m", [["x", "y:(1)2"], []])) == '#sdy.sharding<@m, [{"x", "y":(1)2}, {}]>'
    assert str(sdy.tensor_sharding(context, "m", [["x"], []], open=True)) == '#sdy.sharding<@m, [{"x", ?}, {?}]>'


def test_other_members_of_a_sharding(context: ir.Context) -> None:
    text = '#sdy.sharding<@m, [{"x"}], replicated={"y"}, unreduced={"z"}>'
    sharding = ir.Attribute.parse(text, context)
    assert sdy.replicated_axes(sharding) == ("y",)
    assert sdy.unreduced_axes(sharding) == ("z",)
    inlined = ir.Attribute.parse('#sdy.sharding<mesh<["x"=2]>, [{"x"}]>', context)
    assert sdy.mesh_of(inlined) == ""


def test_axis_size() -> None:
    sizes = {"x": 4, "y": 8}
    assert sdy.axis_size("y", sizes) == 8
    assert sdy.axis_size("y:(2)4", sizes) == 4
    assert sdy.axis_size("unknown", sizes) == 1


def test_meshes_are_added_and_listed(context: ir.Context) -> None:
    module = parse_text('sdy.mesh @old = <["a"=3]>\nfunc.func @main() {\n  return\n}', context)
    sdy.add_mesh(module, "mesh", [("x", 2), ("y", 4)])
    assert module.operation.verify()
    assert sdy.mesh_axes(module) == {"mesh": [("x", 2), ("y", 4)], "old": [("a", 3)]}
    assert 'sdy.mesh @mesh = <["x"=2, "y"=4]>' in str(module)


def test_all_sharded_values_are_found(context: ir.Context) -> None:
    module = parse_text(
        """
        sdy.mesh @m = <["x"=2]>
        func.func @main(%a: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}, %b: tensor<4xf32>)
            -> (tensor<4x2xf32>, tensor<4xf32> {sdy.sharding = #sdy.sharding<@m, [{}]>}) {
          %0 = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}, {"x"}]>]>} : tensor<4x2xf32>
          return %0, %b : tensor<4x2xf32>, tensor<4xf32>
        }
        """,
        context,
    )
    found = [(op.name, shape, sdy.dims_of(sharding)) for op, shape, sharding in sdy.sharded_values(module)]
    assert found == [
        ("func.func", (4, 2), (("x",), ())),
        ("func.func", (4,), ((),)),
        ("stablehlo.tanh", (4, 2), ((), ("x",))),
    ]


def test_argument_attributes_round_trip(context: ir.Context) -> None:
    module = parse_text("func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) {\n  return\n}", context)
    main = functions.find(module, "main")
    assert main is not None
    assert functions.argument_attributes(main) == [{}, {}]
    sharding = sdy.tensor_sharding(context, "m", [[]])
    functions.set_argument_attributes(main, [{}, {"sdy.sharding": sharding}])
    assert functions.argument_attributes(main) == [{}, {"sdy.sharding": sharding}]
    assert functions.find(module, "other") is None


def test_per_value_shardings(context: ir.Context) -> None:
    module = parse_text(
        "func.func @main(%a: tensor<4xf32>) {\n  %0 = stablehlo.tanh %a : tensor<4xf32>\n  return\n}", context
    )
    main = functions.find(module, "main")
    assert main is not None
    op = next(functions.walk(main))
    assert sdy.results_of(op) == [None]
    sharding = sdy.tensor_sharding(context, "m", [["x"]])
    op.attributes[sdy.SHARDING] = sdy.per_value([sharding], context)
    assert sdy.results_of(op) == [sharding]
