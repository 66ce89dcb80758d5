"""Behaviours of XLA's schedulers: what runs beside computing."""

from __future__ import annotations

import re

from rhino.xla.behaviour import Behaviour, Compiled, Probe, program
from rhino.xla.collectives import GPUS, TARGETS, dot

# Of small all-reduces some versions make kernels that nothing runs beside.
WIDE = "tensor<4096x4096xf32>"
_BESIDE_DOTS = program(
    f"%a: {WIDE} @[-, x], %b: {WIDE} @[x, -], %c: {WIDE} @[-, -] -> {WIDE} @[-, -], {WIDE} @[-, -]",
    f"{dot('0', 'a', 'b', WIDE)}{dot('1', 'c', 'c', WIDE)}{dot('2', '1', 'c', WIDE)}return %0, %2 : {WIDE}, {WIDE}",
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
)
