"""rhino-gather-earlier: the same numbers, and gathers that nothing in their trip waits for."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest
from layer_loops import ROWS, Dims, planned, ran

from rhino.compile import compile_module, executable
from rhino.dialect.context import copied
from rhino.ir.early_gathers import gather_earlier
from rhino.ir.late_sums import sum_later
from rhino.ir.other_trips import IN_PLACE, OtherTrips
from rhino.machine import Cluster

DATA: Dims = (("x",), (), ())


@pytest.mark.parametrize(
    ("batch", "split", "changed", "first"),
    [
        # Both matrices forward; backward they are read for what is computed again, and for its gradient.
        (ROWS, (("y",), ()), 4, 2),
        (ROWS, ((), ("x", "y")), 4, 2),
        ((("y", "x"), (), ()), (("x", "y"), ()), 4, 2),
        # What computing splits is not gathered.
        ((("x",), (), ()), (("x",), ("y",)), 4, 2),
        # Nothing is.
        (ROWS, ((), ()), 0, 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mesh", [(2, 4), pytest.param((4, 2), marks=pytest.mark.long)])
def test_the_same_numbers(mesh: tuple[int, int], batch: Dims, split: Dims, changed: int, first: int) -> None:
    module = planned(mesh, batch, split)
    earlier, some = copied(module), copied(module)
    assert gather_earlier(earlier) == changed
    assert gather_earlier(some, first=True) == first
    assert earlier.operation.verify()
    # No sum is in another order.
    want = ran(module, jnp.float32)
    for other in (earlier, some) if changed else ():
        for got, expected in zip(ran(other, jnp.float32), want, strict=True):
            np.testing.assert_array_equal(got, expected)
    assert gather_earlier(earlier) == 0


def test_with_sums_that_are_later() -> None:
    module = planned((2, 4), ROWS, (("y",), ()))
    changed = copied(module)
    trips = OtherTrips(sums_later=True, gathers_earlier="all")
    assert trips.change(changed) == trips
    for got, expected in zip(ran(changed, jnp.float32), ran(module, jnp.float32), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_what_there_is_to_change_is_said() -> None:
    """Here nothing is gathered, and sums are all of it."""
    whole = planned((2, 4), ROWS, ((), ()))
    assert OtherTrips(sums_later=True, gathers_earlier="all").change(whole) == OtherTrips(sums_later=True)
    assert OtherTrips(gathers_earlier="first").change(whole) == IN_PLACE


def test_xla_gathers_of_what_nothing_in_the_trip_makes(gpu_compiler: None) -> None:
    module = planned((8,), DATA, (("x",), ()))
    assert sum_later(module) and gather_earlier(module) == 4
    hlo = compile_module(str(module), "h100").hlo_text()
    bodies = [c for c in re.split(r"\n(?=%|ENTRY)", hlo) if " all-gather-start(" in c and not c.startswith("ENTRY")]
    assert len(bodies) == 2
    for body in bodies:
        lines = dict(re.findall(r"(%[\w.-]+) = (.*)", body))
        done = {name for name, text in lines.items() if " all-gather-done(" in text}
        heavy = [text for text in lines.values() if re.search(r"gemm_fusion|custom-call", text.split("metadata=")[0])]
        assert done and heavy
        read = {name for text in heavy for name in re.findall(r"%[\w.-]+", text)}
        # What is gathered goes to the next trip, at most through a view or a copy.
        for _ in range(3):
            read |= {name for made in read for name in re.findall(r"%[\w.-]+", _view(lines.get(made, "")))}
        assert not done & read


def _view(text: str) -> str:
    return text if re.match(r"\S+ (bitcast|copy)\(", text) else ""


@pytest.mark.slow
def test_over_a_slow_network_gathers_are_earlier_and_hidden(
    gpu_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster.load("p3.16xlarge:2")
    module = str(planned((16,), DATA, (("x",), ()), jnp.float32, cluster, 2048, 8192))
    found = compile_module(module, "v100", overlap=cluster)
    assert found.other_trips.gathers_earlier != "none"
    assert found.to_json()["gathered_earlier"] == found.other_trips.gathers_earlier
    change = executable.prepare_changed

    def sums_only(module: str | bytes, trips: OtherTrips, algorithms: bool = True) -> tuple[OtherTrips, bytes | None]:
        return change(module, OtherTrips(trips.sums_later), algorithms)

    monkeypatch.setattr(executable, "prepare_changed", sums_only)
    before = compile_module(module, "v100", overlap=cluster)
    assert found.timeline(cluster).total_s < 0.95 * before.timeline(cluster).total_s
