"""Behaviours of XLA that matter to what runs beside computing: its schedulers, and what trips hand on to each other."""

from __future__ import annotations

import re

from rhino.xla.behaviour import Behaviour, Compiled, Probe, program
from rhino.xla.collectives import GPUS, TARGETS, dot

# Of small all-reduces some versions make kernels that nothing runs beside.
_B = "tensor<4096x4096xf32>"
_BESIDE_DOTS = program(
    f"%a: {_B} @[-, x], %b: {_B} @[x, -], %c: {_B} @[-, -] -> {_B} @[-, -], {_B} @[-, -]",
    f"{dot('0', 'a', 'b', _B)}{dot('1', 'c', 'c', _B)}{dot('2', '1', 'c', _B)}return %0, %2 : {_B}, {_B}",
)
# Four trips, of which each gathers a row of %ws for the next one, beside its own product.
_CARRIED = program(
    f"%h: {_B} @[x, -], %w: {_B} @[-, -], %ws: tensor<5x4096x4096xf32> @[-, x, -] -> {_B} @[x, -]",
    f"""%none = stablehlo.constant dense<0> : tensor<i32>
    %r:3 = stablehlo.while(%i = %none, %a = %h, %b = %w) : tensor<i32>, {_B}, {_B}
    cond {{
      %n = stablehlo.constant dense<4> : tensor<i32>
      %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      {dot("0", "a", "b", _B)}
      %j = stablehlo.add %i, %one : tensor<i32>
      %s = stablehlo.dynamic_slice %ws, %j, %none, %none, sizes = [1, 4096, 4096]
        : (tensor<5x4096x4096xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4096x4096xf32>
      %row = stablehlo.reshape %s : (tensor<1x4096x4096xf32>) -> {_B}
      %part = sdy.sharding_constraint %row @[x, -] : {_B}
      %next = sdy.sharding_constraint %part @[-, -] : {_B}
      stablehlo.return %j, %0, %next : tensor<i32>, {_B}, {_B}
    }}
    return %r#1 : {_B}""",
)


def spans_dots(compiled: Compiled) -> bool:
    """Whether something is computed between the start and the end of an all-reduce."""
    entry = compiled.hlo_text().partition("\nENTRY ")[2]
    between = entry.partition(" all-reduce-start(")[2].partition(" all-reduce-done(")[0]
    return re.search(r" (fusion|custom-call|dot)\(", between) is not None


BESIDE = (
    Behaviour(
        "asynchronous-collectives",
        "With the latency-hiding scheduler a collective starts before dots that do not need it, and ends behind them.",
        "LatencyHidingScheduler",
        probe=Probe(_BESIDE_DOTS, spans_dots, {"xla_gpu_enable_latency_hiding_scheduler": True}),
        field="asynchronous",
        where=TARGETS,
    ),
    Behaviour(
        "memory-limits-overlap",
        "With the latency-hiding scheduler nothing runs beside computing while a program takes more than a limit.",
        "xla_gpu_memory_limit_slop_factor, percent of what arguments leave of four fifths of the memory",
        probe=Probe(
            _BESIDE_DOTS,
            lambda c: not spans_dots(c),
            {"xla_gpu_enable_latency_hiding_scheduler": True, "xla_gpu_memory_limit_slop_factor": 0},
        ),
        where=("v100",),  # on others, up to 0.10, collectives begin early whoever makes the order
    ),
    Behaviour(
        "collectives-span-dots",
        "A collective starts before dots that do not need it, and ends behind them, without that scheduler, too.",
        probe=Probe(_BESIDE_DOTS, spans_dots),
        where=GPUS,
        not_on=("v100",),
        until="0.12.0.1",
    ),
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
