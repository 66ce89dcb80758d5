"""What is known of the places that loops update."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from rhino.compile.ranges import Range, range_of
from rhino.dialect.context import make_context, parse_text
from rhino.dialect.functions import walk
from rhino.passes.pass_manager import PassManager

LOOP = """
func.func @main(%x: tensor<8xf32>, %one: tensor<1xf32>, %given: tensor<i32>) -> tensor<8xf32> {{
  %from = stablehlo.constant dense<1> : tensor<i32>
  %to = stablehlo.constant dense<6> : tensor<i32>
  %n = stablehlo.constant dense<8> : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%a = %x, %i = %from, %j = %from) : tensor<8xf32>, tensor<i32>, tensor<i32> cond {{
    %go = stablehlo.compare LT, %i, %to : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  }} do {{
    %less = stablehlo.compare LT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %end = stablehlo.add %i, %n : tensor<i32>
    %at = stablehlo.select %less, %end, %i : tensor<i1>, tensor<i32>
    %back = stablehlo.subtract %n, %i : tensor<i32>
    %b = stablehlo.dynamic_update_slice %a, %one, {at} : (tensor<8xf32>, tensor<1xf32>, tensor<i32>) -> tensor<8xf32>
    %next = stablehlo.add %i, {step} : tensor<i32>
    %other = stablehlo.add %j, %i : tensor<i32>
    stablehlo.return %b, %next, %other : tensor<8xf32>, tensor<i32>, tensor<i32>
  }}
  return %0#0 : tensor<8xf32>
}}
"""


@pytest.mark.parametrize(
    ("at", "step", "found"),
    [
        ("%i", "%from", (1, 5)),
        ("%at", "%from", (1, 5)),
        ("%end", "%from", (9, 13)),
        ("%back", "%from", (3, 7)),
        ("%given", "%from", None),
        ("%i", "%zero", None),
        ("%i", "%j", None),
        ("%j", "%j", None),
    ],
    ids=["counter", "as jax writes it", "beyond", "backwards", "argument", "stands still", "no constant", "each other"],
)
def test_ranges(at: str, step: str, found: Range | None) -> None:
    assert _update_range(LOOP.format(at=at, step=step)) == found


def test_scans_of_jax_are_within() -> None:
    def step(c: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return c + x, c * x

    for reverse in (False, True):
        lowered = jax.jit(lambda xs, r=reverse: jax.lax.scan(step, jnp.float32(0), xs, reverse=r)).lower(jnp.ones(8))
        assert _update_range(lowered.as_text()) == (0, 7)


def _update_range(text: str) -> Range | None:
    module = parse_text(text, make_context())
    PassManager(module.context).add("inline").add("canonicalize").run(module)
    (op,) = (op for op in walk(module.operation) if op.name == "stablehlo.dynamic_update_slice")
    return range_of(op.operands[2])
