"""rhino-pair-trips: the same numbers, and no copies of what a trip gathers for the next one."""

from __future__ import annotations

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from layer_loops import LAYERS, ROWS, Dims, planned, ran

from rhino.compile import compile_module
from rhino.dialect.context import copied, make_context, parse_text
from rhino.ir.early_gathers import gather_earlier
from rhino.ir.import_graph import import_graph
from rhino.ir.late_sums import sum_later
from rhino.ir.other_trips import OtherTrips
from rhino.ir.paired_trips import pair_trips

DATA: Dims = (("x",), (), ())
# Each gather by itself, begun as early as may be.
BESIDE = {"xla_gpu_all_gather_combine_threshold_bytes": 0, "xla_gpu_enable_latency_hiding_scheduler": True}


@pytest.mark.parametrize("layers", [2, LAYERS, 5])
def test_the_same_numbers(layers: int) -> None:
    module = planned((2, 4), ROWS, (("y",), ()), layers=layers)
    assert sum_later(module) and gather_earlier(module)
    two = copied(module)
    assert pair_trips(two) == 2
    assert two.operation.verify()
    trips = [op.iterations for op in import_graph(two).ops if op.name == "stablehlo.while"]
    assert layers % 2 or trips == [layers // 2] * 2
    for got, expected in zip(ran(two, jnp.float32, layers), ran(module, jnp.float32, layers), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-7)


def test_where_nothing_is_gathered_loops_are_left() -> None:
    module = planned((2, 4), ROWS, ((), ()))
    assert sum_later(module)
    assert pair_trips(module) == 0


def test_xla_copies_nothing_that_is_gathered(gpu_compiler: None) -> None:
    module = planned((8,), DATA, (("x",), ()), jnp.bfloat16, width=512, length=64)
    assert gather_earlier(module)
    two = copied(module)
    assert pair_trips(two) == 2
    copies = []
    for changed, trips in ((module, 1), (two, 2)):
        hlo = compile_module(str(changed), "h100", options=BESIDE).hlo_text()
        bodies = [c for c in re.split(r"\n(?=%|ENTRY)", hlo) if " all-gather-start(" in c and not c.startswith("ENTRY")]
        assert len(bodies) == 2
        assert [c.count(" all-gather-start(") for c in bodies] == [2 * trips] * 2
        copies.append([len(re.findall(r" copy\(%all-gather", c)) for c in bodies])
    assert all(copies[0])
    assert copies[1] == [0, 0]


def test_what_a_loop_only_adds_up_is_summed_behind_it(gpu_compiler: None) -> None:
    text = (Path(__file__).parents[2] / "partition" / "pair_trips.mlir").read_text(encoding="utf-8")
    mesh = next(line for line in text.splitlines() if line.startswith("sdy.mesh"))
    step = text[text.index("func.func @adds(") :].replace("@adds", "@main")
    module = parse_text(f"{mesh}\n{step}", make_context())
    two = copied(module)
    assert pair_trips(two) == 1
    rng = np.random.default_rng(0)
    given = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((64, 8), (4, 8, 8))]
    found = [compile_module(str(one), "cpu", devices=8)(*given) for one in (two, module)]
    for got, expected in zip(*found, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-5)
    for one in (two, module):
        hlo = compile_module(str(one), "h100").hlo_text()
        sums = [c for c in re.split(r"\n(?=%|ENTRY)", hlo) if " all-reduce(" in c or " all-reduce-start(" in c]
        assert [c.startswith("ENTRY") for c in sums] == [True]


def test_gathers_that_are_earlier_are_in_pairs() -> None:
    module = planned((2, 4), ROWS, (("y",), ()))
    trips = OtherTrips(gathers_earlier="all")
    assert trips.change(module) == trips
    loops = [op.iterations for op in import_graph(module).ops if op.name == "stablehlo.while"]
    assert loops == [LAYERS // 2] * 2
