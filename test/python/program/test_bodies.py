"""Which dimensions a body handles like a batch, and the rule that a manual computation gets of them."""

from __future__ import annotations

import pytest

from rhino.dialect.context import make_context, parse_text
from rhino.ir.diagnostics import PassError
from rhino.ir.import_graph import import_graph
from rhino.program import Op
from rhino.program.bodies import batches
from rhino.sharding.manual import open_states
from rhino.sharding.problem import Node


def manual(body: str, kind: str = "tensor<8x4x6xf32>", local: str = "tensor<8x2x6xf32>") -> Op:
    """The manual computation with this body, of %a to %r, which takes axis y of a mesh x=3, y=2, z=5 on dimension 1."""
    given = '<@mesh, [{}, {"y"}, {}]>'
    text = f"""
sdy.mesh @mesh = <["x"=3, "y"=2, "z"=5]>
func.func @main(%x: {kind}) -> {kind} {{
  %0 = sdy.manual_computation(%x) in_shardings=[{given}] out_shardings=[{given}] manual_axes={{"y", "z"}} (%a: {local})
  {{
{body}
    sdy.return %r : {local}
  }} : ({kind}) -> {kind}
  return %0 : {kind}
}}"""
    (op,) = import_graph(parse_text(text, make_context())).ops
    return op


def free_dims(op: Op) -> list[int]:
    """The dimensions of its operand that have a batch."""
    assert op.manual is not None and op.rule is not None
    return [d for d, dim in enumerate(op.rule.operands[0]) if set(dim) & set(op.manual.free)]


T = "tensor<8x2x6xf32>"
SPLAT = f"%c = stablehlo.constant dense<1.0> : {T}"
IOTA = f"%i = stablehlo.iota dim = 0 : {T}"
ZERO = "%z = stablehlo.constant dense<0.0> : tensor<f32>"
BACK = f"dims = [0, 1] : (tensor<8x2xf32>) -> {T}"


@pytest.mark.parametrize(
    ("body", "free"),
    [
        (f"{SPLAT}\n%r = stablehlo.add %a, %c : {T}", [0, 1, 2]),
        (f"{IOTA}\n%r = stablehlo.add %a, %i : {T}", []),
        (f"%r = stablehlo.reverse %a, dims = [2] : {T}", [0, 1]),
        (
            f"{ZERO}\n%s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [2] : "
            f"({T}, tensor<f32>) -> tensor<8x2xf32>\n%r = stablehlo.broadcast_in_dim %s, {BACK}",
            [0, 1],
        ),
        (f"%r = stablehlo.custom_call @unknown(%a) : ({T}) -> {T}", []),
        (
            '%r = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 5]]> : tensor<1x2xi64>}> : '
            f"({T}) -> {T}",
            [0, 1, 2],
        ),
        (
            f"%s = stablehlo.reshape %a : ({T}) -> tensor<16x6xf32>\n%t = stablehlo.tanh %s : tensor<16x6xf32>\n"
            f"%r = stablehlo.reshape %t : (tensor<16x6xf32>) -> {T}",
            [0, 2],
        ),
    ],
    ids=["elementwise", "numbers examples", "reverse", "sum", "unknown", "permute", "merged"],
)
def test_what_passes_through_is_a_batch(body: str, free: list[int]) -> None:
    assert free_dims(manual(body)) == free


def test_the_rule_has_the_axes_then_the_batch_then_the_rest() -> None:
    op = manual(f"{SPLAT}\n%r = stablehlo.add %a, %c : {T}")
    assert op.manual is not None and op.rule is not None
    assert op.manual.taken == (("y", 0), ("z", -1))
    assert [[op.rule.factor_sizes[f] for f in dim] for dim in op.rule.operands[0]] == [[8], [2, 2], [6]]
    assert op.rule.operands == op.rule.results
    assert op.manual.ways(op.rule) == 2


def test_a_mesh_axis_that_is_taken_has_one_state_and_a_free_one_those_of_batches() -> None:
    op = manual(f"%r = stablehlo.reverse %a, dims = [2] : {T}")
    assert op.manual is not None and op.rule is not None
    factors = (0, *op.manual.free)
    node = Node(0, "op", [0], [], factors, tuple(op.rule.factor_sizes[f] for f in factors))
    assert open_states(op.manual, node, "y") == (1,)
    assert open_states(op.manual, node, "z") == (0,)
    assert open_states(op.manual, node, "x") == (0, 2, 3)


def test_loops_count_and_collectives_name_their_axes() -> None:
    body = f"""
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %seven = stablehlo.constant dense<7> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n, %r = stablehlo.while(%i = %zero, %v = %a) : tensor<i32>, {T}
    cond {{
      %p = stablehlo.compare LT, %i, %seven, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      %w = "stablehlo.collective_permute"(%v) <{{
        source_target_pairs = dense<[[0, 5], [5, 0]]> : tensor<2x2xi64>}}> : ({T}) -> {T}
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %w : tensor<i32>, {T}
    }}"""
    op = manual(body)
    assert op.manual is not None
    (sent,) = op.manual.sent
    assert (sent.kind, sent.axes, sent.nbytes) == ("collective-permute", ("y",), 8 * 2 * 6 * 4)
    assert op.manual.body.ops[sent.op].trips == 7
    assert batches(op.manual.body).sizes == (8, 2, 6)


def test_equal_computations_have_one_key() -> None:
    first, second = (manual(f"%r = stablehlo.{name} %a : {T}") for name in ("tanh", "sine"))
    again = manual(f"%r = stablehlo.tanh %a : {T}")
    assert first.manual == again.manual != second.manual


def test_a_device_that_is_not_there_is_an_error() -> None:
    body = (
        '%r = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 30]]> : tensor<1x2xi64>}> : '
        f"({T}) -> {T}"
    )
    with pytest.raises(PassError, match="names device 30 of a mesh of 30"):
        manual(body)
