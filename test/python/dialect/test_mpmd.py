"""Members of mpmd types and topologies, which jaxlib's bindings do not give."""

from __future__ import annotations

import pytest
from jaxlib.mlir import ir

from rhino.dialect import functions, mpmd
from rhino.dialect.context import make_context, parse_text


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return make_context()


@pytest.mark.parametrize(
    ("text", "mesh", "tensor", "sharding", "kind"),
    [
        ('!mpmd.mesh_tensor<"m", tensor<4xf32>>', "m", "tensor<4xf32>", None, None),
        ('!mpmd.mesh_tensor<"m", tensor<f32>>', "m", "tensor<f32>", None, None),
        ('!mpmd.mesh_tensor<"a b", tensor<2xcomplex<f32>>>', "a b", "tensor<2xcomplex<f32>>", None, None),
        (
            '!mpmd.mesh_tensor<"m", tensor<4x8xbf16>, sharding=<@mesh, [{"x"}, {?}]>>',
            "m",
            "tensor<4x8xbf16>",
            '#sdy.sharding<@mesh, [{"x"}, {?}]>',
            None,
        ),
        (
            '!mpmd.mesh_tensor<"m", tensor<4xf32>, sharding=<@mesh, [{}]>, memory_kind="pinned_host">',
            "m",
            "tensor<4xf32>",
            "#sdy.sharding<@mesh, [{}]>",
            "pinned_host",
        ),
        ('!mpmd.mesh_tensor<"m", tensor<4xf32>, memory_kind="device">', "m", "tensor<4xf32>", None, "device"),
    ],
)
def test_mesh_tensor(
    context: ir.Context, text: str, mesh: str, tensor: str, sharding: str | None, kind: str | None
) -> None:
    value_type = ir.Type.parse(text, context)
    found = mpmd.mesh_tensor(value_type)
    assert found is not None
    assert (found.mesh, str(found.tensor), found.memory_kind) == (mesh, tensor, kind)
    assert (str(found.sharding) if found.sharding else None) == sharding
    assert found.to_type(context) == value_type


def test_other_types_are_none(context: ir.Context) -> None:
    assert mpmd.mesh_tensor(ir.Type.parse("tensor<4xf32>", context)) is None


def test_topology_keeps_order_and_duplicates(context: ir.Context) -> None:
    module = parse_text(
        """
        func.func @none() {
          return
        }
        func.func @main()
            attributes {topology = #mpmd.topology<<"b": <["x"=2, "y"=3]>>, <"a": <["x"=4]>>, <"b": <["z"=1]>>>} {
          return
        }
        """,
        context,
    )
    none, main = functions.all_functions(module)
    assert mpmd.topology(none) is None
    assert mpmd.topology(main) == [("b", [("x", 2), ("y", 3)]), ("a", [("x", 4)]), ("b", [("z", 1)])]


def test_topology_reads_back_as_built(context: ir.Context) -> None:
    meshes = {"m0": [("x", 2), ("y", 4)], "m1": [("z", 3)]}
    module = parse_text("func.func @main() {\n  return\n}", context)
    (main,) = functions.all_functions(module)
    main.attributes[mpmd.TOPOLOGY] = mpmd.make_topology(meshes, context)
    assert mpmd.topology(main) == list(meshes.items())


def test_device_ids_of_a_mesh_are_read_past(context: ir.Context) -> None:
    module = parse_text(
        "func.func @main() attributes {"
        'topology = #mpmd.topology<<"m": <["x"=2], device_ids=[1, 0]>>, <"n": <["x"=2]>>>} {\n  return\n}',
        context,
    )
    (main,) = functions.all_functions(module)
    assert mpmd.topology(main) == [("m", [("x", 2)]), ("n", [("x", 2)])]
