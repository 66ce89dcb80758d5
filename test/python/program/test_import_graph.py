"""From MLIR to the graph: flops, trips, rules, roles, aliases, pins and errors, on programs as jax lowers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxlib.mlir import ir
from search_programs import adam_step, graph_of, module_of, spec

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError
from rhino.ir.import_graph import import_graph, number_program
from rhino.program import Graph, Op


def only(graph: Graph, name: str) -> Op:
    """The only op of a kind."""
    (op,) = (op for op in graph.ops if op.name == name)
    return op


def parsed(text: str) -> ir.Module:
    return parse_text(text, make_context())


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("mk,kn->mn", [(3, 5), (5, 7)], 2 * 3 * 5 * 7),
        ("bmk,bkn->bmn", [(2, 3, 5), (2, 5, 7)], 2 * 2 * 3 * 5 * 7),
        ("bshk,hkd->bsd", [(2, 3, 5, 7), (5, 7, 11)], 2 * 2 * 3 * 5 * 7 * 11),
        ("i,i->", [(13,), (13,)], 2 * 13),
    ],
)
def test_flops_of_dots(equation: str, shapes: list[tuple[int, ...]], flops: int) -> None:
    graph = graph_of(lambda a, b: jnp.einsum(equation, a, b), *(spec(*s) for s in shapes))
    assert only(graph, "stablehlo.dot_general").flops == flops


def test_flops_of_the_short_form_of_dot() -> None:
    graph = import_graph(
        parsed(
            """func.func @main(%a: tensor<3x5xf32>, %b: tensor<5x7xf32>) -> tensor<3x7xf32> {
  %0 = stablehlo.dot %a, %b : (tensor<3x5xf32>, tensor<5x7xf32>) -> tensor<3x7xf32>
  return %0 : tensor<3x7xf32>
}"""
        )
    )
    assert only(graph, "stablehlo.dot").flops == 2 * 3 * 5 * 7


@pytest.mark.parametrize(
    ("arguments", "flops"),
    [
        ({"padding": "SAME"}, 2 * (2 * 8 * 8 * 6) * (3 * 3 * 4)),
        ({"padding": "VALID"}, 2 * (2 * 6 * 6 * 6) * (3 * 3 * 4)),
        ({"padding": "SAME", "window_strides": (2, 2)}, 2 * (2 * 4 * 4 * 6) * (3 * 3 * 4)),
    ],
)
def test_flops_of_convolutions(arguments: dict[str, Any], flops: int) -> None:
    options = {"window_strides": (1, 1), "dimension_numbers": ("NHWC", "HWIO", "NHWC"), **arguments}
    graph = graph_of(lambda x, k: jax.lax.conv_general_dilated(x, k, **options), spec(2, 8, 8, 4), spec(3, 3, 4, 6))
    assert only(graph, "stablehlo.convolution").flops == flops


def test_a_strided_convolution_and_its_gradients_take_as_much_each() -> None:
    def conv(x: jax.Array, k: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def gradients(x: jax.Array, k: jax.Array, dy: jax.Array) -> Any:
        return jax.vjp(conv, x, k)[1](dy)

    graph = graph_of(gradients, spec(2, 8, 8, 4), spec(3, 3, 4, 6), spec(2, 4, 4, 6))
    forward = 2 * (2 * 4 * 4 * 6) * (3 * 3 * 4)
    assert [op.flops for op in graph.ops if op.name == "stablehlo.convolution"] == [forward, forward]


def test_flops_of_grouped_convolutions_count_the_group() -> None:
    def depthwise(x: jax.Array, k: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=4)

    graph = graph_of(depthwise, spec(2, 8, 8, 4), spec(3, 3, 1, 4))
    assert only(graph, "stablehlo.convolution").flops == 2 * (2 * 8 * 8 * 4) * 9


def test_loops_and_constants_have_no_flops_of_their_own() -> None:
    graph = graph_of(lambda x: jax.lax.fori_loop(0, 5, lambda _, v: v + 1, x), spec(8))
    assert {op.flops for op in graph.ops if op.name in ("stablehlo.while", "stablehlo.constant")} == {0}


def scan(length: int) -> Callable[..., Any]:
    return lambda x: jax.lax.scan(lambda h, _: (jnp.tanh(h), None), x, None, length=length)[0]


def fori(start: int, stop: int) -> Callable[..., Any]:
    return lambda x: jax.lax.fori_loop(start, stop, lambda _, v: jnp.tanh(v), x)


def nested(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 3, lambda _, v: jax.lax.fori_loop(0, 4, lambda _, u: jnp.tanh(u), v), x)


@pytest.mark.parametrize(
    ("function", "trips"),
    [
        (scan(7), 7),
        (fori(0, 9), 9),
        (fori(3, 9), 6),
        (nested, 12),
        # The number of trips depends on data: counted once.
        (lambda x: jax.lax.while_loop(lambda v: v.sum() < 3, jnp.tanh, x), 1),
        # Backward and forward of a scan.
        (lambda x: jax.grad(lambda v: scan(5)(v).sum())(x), 5),
    ],
)
def test_trip_counts(function: Callable[..., Any], trips: int) -> None:
    graph = graph_of(function, spec(8))
    assert {op.trips for op in graph.ops if op.name == "stablehlo.tanh"} == {trips}
    assert {op.trips for op in graph.ops if op.parent < 0} == {1}


def test_steps_and_limits_of_counted_loops() -> None:
    text = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
      %start = stablehlo.constant dense<2> : tensor<i32>
      %o:2 = stablehlo.while(%i = %start, %v = %x) : tensor<i32>, tensor<8xf32>
      cond {{
        %limit = stablehlo.constant dense<11> : tensor<i32>
        %c = stablehlo.compare {compare}, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %step = stablehlo.constant dense<{step}> : tensor<i32>
        %j = stablehlo.add %i, %step : tensor<i32>
        %w = stablehlo.tanh %v : tensor<8xf32>
        stablehlo.return %j, %w : tensor<i32>, tensor<8xf32>
      }}
      return %o#1 : tensor<8xf32>
    }}"""
    for compare, step, trips in (("LT", 1, 9), ("LT", 3, 3), ("LT", 4, 3), ("LT", -1, 1), ("GT", 1, 1)):
        graph = import_graph(parsed(text.format(compare=compare, step=step)))
        assert only(graph, "stablehlo.tanh").trips == trips, (compare, step)


def test_a_loop_knows_its_body_and_what_it_carries() -> None:
    graph = graph_of(lambda x, w: jax.lax.fori_loop(0, 5, lambda _, v: v @ w, x), spec(4, 8), spec(8, 8))
    loop, dot = only(graph, "stablehlo.while"), only(graph, "stablehlo.dot_general")
    assert dot.parent == loop.index < dot.index < loop.region_end
    assert all(op.region_end == op.index + 1 for op in graph.ops if op is not loop)
    for operand, condition, body, handed_on, out in loop.ties:
        assert operand in loop.operands
        assert out in loop.results
        assert graph.values[body].producer == graph.values[condition].producer == -1
        assert graph.values[body].loop == loop.index
        assert len({graph.values[v].shape for v in (operand, condition, body, handed_on, out)}) == 1


def test_rules_are_shardys() -> None:
    graph = graph_of(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), spec(2, 3, 5), spec(2, 5, 7))
    rule = only(graph, "stablehlo.dot_general").rule
    assert rule is not None
    assert sorted(rule.factor_sizes) == [2, 3, 5, 7]
    assert [rule.factor_sizes[f] for f in rule.reduction] == [5]
    assert [[rule.factor_sizes[f] for (f,) in m] for m in (*rule.operands, *rule.results)] == [
        [2, 3, 5],
        [2, 5, 7],
        [2, 3, 7],
    ]


def test_chlo_ops_of_one_shape_are_element_wise() -> None:
    graph = graph_of(jax.scipy.special.erf, spec(4, 8))
    (op,) = (op for op in graph.ops if op.name.startswith("chlo."))
    assert op.rule is not None
    assert op.rule.operands == op.rule.results == (((0,), (1,)),)


@pytest.mark.parametrize(
    ("read", "made", "factors"),
    [
        ("1x16x0x8", "16x0x8", (((), (0,), (1,), (2,)), ((0,), (1,), (2,)))),  # as a loop cuts out a layer's
        ("0x4", "4x0", None),
        ("2x0", "0", None),
    ],
)
def test_views_of_nothing_keep_what_only_loses_dimensions_of_one(read: str, made: str, factors: Any) -> None:
    text = f"""func.func @main(%x: tensor<{read}xf32>) -> tensor<{made}xf32> {{
  %0 = stablehlo.reshape %x : (tensor<{read}xf32>) -> tensor<{made}xf32>
  return %0 : tensor<{made}xf32>
}}"""
    rule = only(import_graph(parsed(text)), "stablehlo.reshape").rule
    assert (rule and (*rule.operands, *rule.results)) == factors


def test_chlo_ops_that_change_shape_have_no_rule() -> None:
    graph = graph_of(lambda x: jax.lax.top_k(x, 2)[0], spec(4, 8))
    (op,) = (op for op in graph.ops if op.name.startswith("chlo."))
    assert op.rule is None


def test_an_unknown_custom_call_has_a_name_and_no_rule() -> None:
    text = """func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.custom_call @mine(%x) : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }"""
    op = only(import_graph(parsed(text)), "stablehlo.custom_call")
    assert (op.tag, op.rule) == ("mine", None)


def test_branches_tie_what_they_yield() -> None:
    graph = graph_of(lambda i, x: jax.lax.cond(i > 0, jnp.tanh, jnp.negative, x), spec(dtype=jnp.int32), spec(8))
    case = only(graph, "stablehlo.case")
    ((first, second, out),) = case.ties
    assert {graph.ops[graph.values[v].producer].name for v in (first, second)} == {"stablehlo.tanh", "stablehlo.negate"}
    assert (out,) == case.results
    assert {op.trips for op in graph.ops} == {1}


def test_arguments_have_names_roles_and_aliases() -> None:
    function, arguments = adam_step(2, 16, 8)
    graph = import_graph(module_of(function, *arguments, donate=(0,), roles=True))
    kernel = next(a for a in graph.arguments if a.name == "state[0]['params']['Dense_1']['kernel']")
    assert (kernel.role, kernel.donated) == ("param", True)
    assert graph.values[graph.outputs[kernel.alias]].shape == (8, 8)
    assert {a.role for a in graph.arguments if a.name in ("x", "y")} == {"batch"}
    assert all(a.alias == -1 for a in graph.arguments if a.role == "batch")
    # Without debug information, positions.
    plain = import_graph(parsed("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"))
    assert [a.name for a in plain.arguments] == ["arg0"]


def test_a_name_given_as_an_attribute_wins() -> None:
    text = 'func.func @main(%x: tensor<8xf32> {rhino.name = "table"}) -> tensor<8xf32> { return %x : tensor<8xf32> }'
    assert import_graph(parsed(text)).arguments[0].name == "table"


def test_a_donor_without_an_alias() -> None:
    text = """func.func @main(%x: tensor<8xf32> {jax.buffer_donor = true}) -> tensor<4xf32> {
      %0 = stablehlo.constant dense<0.0> : tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    (argument,) = import_graph(parsed(text)).arguments
    assert (argument.donated, argument.alias) == (True, -1)


PINNED = """sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x", "y"}]>}) {
  %0 = sdy.sharding_constraint %x <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
  %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>]>} : tensor<8x8xf32>
  %2 = stablehlo.negate %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y", ?}, {?}]>]>} : tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}"""


def test_shardings_become_pins() -> None:
    graph = import_graph(parsed(PINNED))
    constraint = only(graph, "sdy.sharding_constraint")
    assert {v: dims for v, (_, dims) in graph.pins.items()} == {
        0: (("x",), ()),
        constraint.results[0]: ((), ("y",)),
        graph.outputs[0]: ((), ("x", "y")),
    }
    assert graph.pins[0][0] == "argument arg0"
    assert constraint.flops == 0


def test_closed_shardings_of_ops_are_pins_when_a_plan_is_read() -> None:
    graph = import_graph(parsed(PINNED), read_op_shardings=True)
    assert graph.pins[only(graph, "stablehlo.tanh").results[0]][1] == (("y",), ())
    # An open one leaves the choice; the result's own stands.
    assert graph.pins[graph.outputs[0]][1] == ((), ("x", "y"))


def test_the_module_is_left_as_it_was() -> None:
    module = module_of(scan(3), spec(8))
    before = str(module)
    import_graph(module)
    assert str(module) == before


@pytest.mark.parametrize("function", [scan(3), nested, lambda x: jax.lax.cond(x[0] > 0, jnp.tanh, jnp.negative, x)])
def test_numbering_agrees_with_the_handles(function: Callable[..., Any]) -> None:
    module = module_of(function, spec(8))
    graph = import_graph(module)
    main = functions.find(module, "main")
    values, ops = number_program(main)
    assert [op.name for op in ops] == [op.name for op in graph.ops]
    assert [str(v.type) for v in values] == [f"tensor<{'x'.join(map(str, (*v.shape, v.dtype)))}>" for v in graph.values]
    for op, record in zip(ops, graph.ops, strict=True):
        assert [values.index(v) for v in op.operands] == list(record.operands)
        assert [values.index(v) for v in op.results] == list(record.results)


def test_a_dynamic_shape_is_an_error_at_its_place() -> None:
    text = """
    func.func @main(%n: tensor<1xi32>) {
      %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
      return
    }"""
    with pytest.raises(PassError, match=r"type 'tensor<\?xf32>' has a dynamic dimension") as error:
        import_graph(parsed(text))
    assert error.value.diagnostic.position.line == 3


def test_a_call_is_an_error_at_its_place() -> None:
    text = """
    func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = func.call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }"""
    with pytest.raises(PassError, match="call to @f is not inlined") as error:
        import_graph(parsed(text))
    assert error.value.diagnostic.position.line == 4
    assert error.value.diagnostic.notes[0].message == "run the `rhino-inline` pass first (rhino-auto does)"


def test_a_module_without_main() -> None:
    with pytest.raises(RhinoError, match="module has no function @main"):
        import_graph(parsed("func.func @step() { return }"))


def test_tokens_and_keys_are_values_without_elements_to_split() -> None:
    graph = graph_of(lambda k: jax.random.normal(jax.random.wrap_key_data(k), (8,)), spec(2, dtype=jnp.uint32))
    assert graph.values[graph.arguments[0].value].dtype == "ui32"
    assert graph.values[graph.outputs[0]].shape == (8,)


@pytest.mark.parametrize(
    ("given", "rate"),
    [("bf16", "bf16"), ("bfloat16", "bf16"), ("float8_e4m3fn", "f8"), ("f8E5M2", "f8"), ("i32", "i32")],
)
def test_a_described_kernel_has_the_rate_of_its_type_in_any_spelling(given: str, rate: str) -> None:
    text = f"""
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{
      %y = stablehlo.custom_call @mine(%x) {{rhino.kernel = {{bytes = 64 : i64, flops = 8 : i64, name = "mine",
        rate = "tensor", type = "{given}"}}}} : (tensor<8xf32>) -> tensor<8xf32>
      return %y : tensor<8xf32>
    }}"""
    (op,) = import_graph(parse_text(text, make_context())).ops
    assert op.kernel is not None
    assert op.kernel.dtype == rate
