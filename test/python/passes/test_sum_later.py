"""rhino-sum-later: the same numbers, and sums over devices that nothing in their trip waits for."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest
from layer_loops import ROWS, Dims, planned, ran

from rhino.compile import compile_module, executable
from rhino.dialect.context import copied
from rhino.ir.late_sums import sum_later
from rhino.ir.other_trips import IN_PLACE
from rhino.machine import Cluster


@pytest.mark.parametrize(
    ("batch", "split", "changed"),
    [
        (ROWS, ((), ()), 4),
        # What scatters a gradient is summed over first.
        (ROWS, (("y",), ()), 4),
        (ROWS, ((), ("x", "y")), 4),
        ((("y", "x"), (), ()), (("x",), ()), 4),
        ((("y", "x"), (), ()), (("x", "y"), ()), 4),
        # Two dimensions that are summed.
        ((("x",), ("y",), ()), ((), ()), 4),
        ((("x",), ("y",), ()), (("y",), ()), 4),
        ((("x",), (), ()), ((), ("y",)), 4),
        # Nothing is summed over devices.
        (((), (), ()), ((), ("x", "y")), 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mesh", [(2, 4), pytest.param((4, 2), marks=pytest.mark.long)])
def test_the_same_numbers(mesh: tuple[int, int], batch: Dims, split: Dims, changed: int) -> None:
    module = planned(mesh, batch, split)
    later = copied(module)
    assert sum_later(later) == changed
    assert later.operation.verify()
    for got, want in zip(ran(later, jnp.float32), ran(module, jnp.float32), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)
    assert sum_later(later) == 0


def test_in_bfloat16() -> None:
    module = planned((2, 4), ROWS, (("y",), ()), jnp.bfloat16)
    later = copied(module)
    assert sum_later(later) == 4
    for got, want in zip(ran(later, jnp.bfloat16), ran(module, jnp.bfloat16), strict=True):
        np.testing.assert_allclose(got, want, rtol=0.02, atol=0.01)


def test_axes_that_divide_one_dimension_are_summed_over_at_once(gpu_compiler: None) -> None:
    """By one after the other the first would send the most, over the slowest links."""
    every = ("x", "y", "z")
    module = planned((2, 2, 2), (every, (), ()), (every, ()))
    later = copied(module)
    assert sum_later(later)
    plain, late = (
        {
            (c.group_size, c.bytes / c.count)
            for c in compile_module(str(one), "h100").collectives()
            if "scatter" in c.kind
        }
        for one in (module, later)
    )
    # Of what is summed later alone, 32 bytes for biases are besides.
    assert {one for one in late if one[1] > 100} == plain


def test_only_over_the_axes_that_are_told() -> None:
    module = planned((2, 4), (("x",), ("y",), ()), ((), ()))
    for axes, changed in ((("x",), 4), (("z",), 0)):
        assert sum_later(copied(module), axes) == changed


def test_xla_sums_what_the_trip_before_made(gpu_compiler: None) -> None:
    module = planned((2, 4), ROWS, ((), ()))
    assert sum_later(module)
    hlo = compile_module(str(module), "h100").hlo_text()
    bodies = [c for c in re.split(r"\n(?=%|ENTRY)", hlo) if " all-reduce-start(" in c and not c.startswith("ENTRY")]
    assert bodies
    for body in bodies:
        made = dict(re.findall(r"(%[\w.-]+) = (.*)", body))
        queue = [name for name, text in made.items() if " all-reduce-start(" in text]
        for name in queue:
            text = made.get(name, "").split("metadata=")[0]
            assert not re.search(r"gemm_fusion|custom-call", text)
            queue += [other for other in re.findall(r"%[\w.-]+", text.split("calls=")[0]) if other not in queue]


@pytest.mark.long  # that of rhino-gather-earlier has later sums, too
def test_over_a_slow_network_sums_are_later_and_hidden(gpu_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.load("p3.16xlarge:2")
    module = str(planned((2, 8), ROWS, ((), ("y",)), jnp.float32, cluster, 1024, 2048))
    found = compile_module(module, "v100", overlap=cluster)
    assert found.other_trips.sums_later
    assert found.to_json()["summed_later"]
    monkeypatch.setattr(executable, "prepare_changed", lambda *arguments, **keywords: (IN_PLACE, None))
    before = compile_module(module, "v100", overlap=cluster)
    assert before.other_trips == IN_PLACE
    assert found.timeline(cluster).total_s < 0.9 * before.timeline(cluster).total_s
