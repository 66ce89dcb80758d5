"""Behaviours of XLA's layouts: what is turned around or copied in memory for a collective, and in loops."""

from __future__ import annotations

import re

from rhino.xla.behaviour import Behaviour, Probe, program, until
from rhino.xla.beside import WIDE
from rhino.xla.collectives import GPUS, TARGETS, dot

# Four trips, of which each gathers a row of %ws for the next one, beside its own product.
_CARRIED = program(
    f"%h: {WIDE} @[x, -], %w: {WIDE} @[-, -], %ws: tensor<5x4096x4096xf32> @[-, x, -] -> {WIDE} @[x, -]",
    f"""%none = stablehlo.constant dense<0> : tensor<i32>
    %r:3 = stablehlo.while(%i = %none, %a = %h, %b = %w) : tensor<i32>, {WIDE}, {WIDE}
    {until(4)} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      {dot("0", "a", "b", WIDE)}
      %j = stablehlo.add %i, %one : tensor<i32>
      %s = stablehlo.dynamic_slice %ws, %j, %none, %none, sizes = [1, 4096, 4096]
        : (tensor<5x4096x4096xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4096x4096xf32>
      %row = stablehlo.reshape %s : (tensor<1x4096x4096xf32>) -> {WIDE}
      %part = sdy.sharding_constraint %row @[x, -] : {WIDE}
      %next = sdy.sharding_constraint %part @[-, -] : {WIDE}
      stablehlo.return %j, %0, %next : tensor<i32>, {WIDE}, {WIDE}
    }}
    return %r#1 : {WIDE}""",
)

LAYOUTS = (
    Behaviour(
        "scattered-outermost",
        "What is summed and kept in parts of a dimension lies with that one outermost. A dot makes it so; an "
        "argument, and what a loop carries, is turned around in memory before.",
        "GpuLayoutAssignment",
        probe=Probe(
            program(
                "%a: tensor<8x64x128xf32> @[x, -, -] -> tensor<64x128xf32> @[-, x]",
                """%z = stablehlo.constant dense<0.0> : tensor<f32>
                %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
                  : (tensor<8x64x128xf32>, tensor<f32>) -> tensor<64x128xf32>
                return %0 : tensor<64x128xf32>""",
            ),
            lambda c: re.search(r"f32\[128,1,64\]\S* transpose", c.hlo_text()) is not None,
        ),
        where=GPUS,
    ),
    Behaviour(
        "gathered-turned",
        "What was gathered lies with that dimension outermost. A dot reads it so if what it adds up, and what it "
        "leaves, then still lie together; else it is turned around in memory before.",
        "GpuLayoutAssignment",
        probe=Probe(
            program(
                "%a: tensor<4096x1024xbf16> @[x, -], %w: tensor<1024x16x128xbf16> @[-, -, x] "
                "-> tensor<4096x16x128xbf16> @[x, -, -]",
                """%0 = sdy.sharding_constraint %w @[-, -, -] : tensor<1024x16x128xbf16>
                %1 = stablehlo.dot_general %a, %0, contracting_dims = [1] x [0]
                  : (tensor<4096x1024xbf16>, tensor<1024x16x128xbf16>) -> tensor<4096x16x128xbf16>
                return %1 : tensor<4096x16x128xbf16>""",
            ),
            lambda c: re.search(r"bf16\[1024,16,128\]\S* transpose", c.hlo_text()) is not None,
        ),
        field="gathers_turned",
        where=TARGETS,
    ),
    Behaviour(
        "carried-copied",
        "What a trip of a loop gathers for the next one, while it reads what the one before has gathered, is copied "
        "into the place of that when the trip ends.",
        "CopyInsertion",
        probe=Probe(
            _CARRIED,
            lambda c: re.search(r"f32\[4096,4096\]\S* copy\(%all-gather", c.hlo_text()) is not None,
            {"xla_gpu_enable_latency_hiding_scheduler": True},
        ),
        where=GPUS,
    ),
)
