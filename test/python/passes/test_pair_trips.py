"""rhino-pair-trips: the same numbers, and no copies of what a trip gathers for the next one."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest
from layer_loops import LAYERS, ROWS, Dims, planned, ran

from rhino.compile import compile_module
from rhino.dialect.context import copied
from rhino.ir.import_graph import import_graph
from rhino.ir.other_trips import OtherTrips
from rhino.ir.paired_trips import pair_trips

DATA: Dims = (("x",), (), ())
EARLIER = OtherTrips(sums_later=True, gathers_earlier="all")
PAIRED = OtherTrips(sums_later=True, gathers_earlier="all", in_pairs=True)
# Each gather by itself, begun as early as may be.
BESIDE = {"xla_gpu_all_gather_combine_threshold_bytes": 0, "xla_gpu_enable_latency_hiding_scheduler": True}


@pytest.mark.parametrize("layers", [2, LAYERS, 5])
def test_the_same_numbers(layers: int) -> None:
    module = planned((2, 4), ROWS, (("y",), ()), layers=layers)
    one, two = copied(module), copied(module)
    assert EARLIER.change(one) == EARLIER
    assert PAIRED.change(two) == PAIRED
    assert two.operation.verify()
    trips = [op.iterations for op in import_graph(two).ops if op.name == "stablehlo.while"]
    assert layers % 2 or trips == [layers // 2] * 2
    for got, expected in zip(ran(two, jnp.float32, layers), ran(one, jnp.float32, layers), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-7)


def test_where_nothing_is_gathered_loops_are_left() -> None:
    module = planned((2, 4), ROWS, ((), ()))
    assert PAIRED.change(module) == OtherTrips(sums_later=True)
    assert pair_trips(module) == 0


def test_xla_copies_nothing_that_is_gathered(gpu_compiler: None) -> None:
    module = planned((8,), DATA, (("x",), ()), jnp.bfloat16, width=512, length=64)
    copies = {}
    for trips in (EARLIER, PAIRED):
        changed = copied(module)
        assert trips.change(changed) == trips
        hlo = compile_module(str(changed), "h100", options=BESIDE).hlo_text()
        bodies = [c for c in re.split(r"\n(?=%|ENTRY)", hlo) if " all-gather-start(" in c and not c.startswith("ENTRY")]
        assert len(bodies) == 2
        assert [c.count(" all-gather-start(") for c in bodies] == [2 * (1 + trips.in_pairs)] * 2
        copies[trips] = [len(re.findall(r" copy\(%all-gather", c)) for c in bodies]
    assert all(copies[EARLIER])
    assert copies[PAIRED] == [0, 0]
