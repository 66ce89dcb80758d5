"""Loops over layers are cut as finely as the stages want that are asked for, that devices allow, or that fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhino.deadline import Deadline
from rhino.ir.microbatch.programs import loop_pieces
from rhino.ir.microbatch.ways import PipelineWays
from rhino.ir.scans.pieces import bounds
from rhino.machine import Cluster
from rhino.plan.data import PlanData
from rhino.plan.module import parse_module, plan_module
from rhino.request import PlanRequest

LAYERS, WIDTH, BATCH = 32, 512, 16


def apart(hosts: int) -> Cluster:
    """Hosts of one V100 each, on Ethernet."""
    preset = Cluster.load(f"p3.8xlarge:{hosts}")
    return replace(preset, devices_per_host=1, levels=preset.levels[1:])


def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Layers as a loop."""

    def loss(w: jax.Array) -> jax.Array:
        y, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y @ w[0]) @ w[1] + y, None), x, w)
        return (y**2).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return w - gradient, value


@given(st.sampled_from(["O1", "O2"]), st.integers(1, 128), st.integers(2, 64))
def test_stages_that_are_asked_for_have_layers_alike(level: str, layers: int, stages: int) -> None:
    pieces = loop_pieces(level, 64, stages)
    assert pieces % stages == 0
    edges = bounds(layers, pieces)
    if len(edges) > pieces:
        each = pieces // stages
        ends = [edges[s * each] for s in range(stages + 1)]
        assert {b - a for a, b in pairwise(ends)} <= {layers // stages, -(-layers // stages)}


@pytest.mark.parametrize(
    ("level", "devices", "pieces"),
    [("O1", 8, 16), ("O1", 1024, 16), ("O1", 96, 24), ("O1", 40, 20), ("O1", 11, 22), ("O1", 1000, 16), ("O2", 96, 48)],
)
def test_they_suit_the_stages_that_devices_can_have(level: str, devices: int, pieces: int) -> None:
    assert loop_pieces(level, devices) == pieces


def planned(limit: int) -> PlanData:
    lowered = jax.jit(step, donate_argnums=0).lower(jnp.zeros((LAYERS, 2, WIDTH, WIDTH)), jnp.zeros((BATCH, WIDTH)))
    request = PlanRequest.of(apart(LAYERS), stages="auto", microbatches=8, memory_limit=limit)
    return plan_module(parse_module(lowered.as_text().encode(), "step"), request).plan


def test_where_nothing_else_fits_there_are_more_stages() -> None:
    """A device can hold a layer with its gradients, and not two."""
    plan = planned(7_500_000)
    assert plan.stages == LAYERS
    assert plan.predicted.peak_bytes <= 7_500_000
    alone = next(a for a in plan.alternatives if a.name.startswith("mesh"))
    assert alone.step_time_s is not None and plan.predicted.step_time_s < 0.5 * alone.step_time_s


@pytest.mark.parametrize(("share", "deeper"), [(0.01, False), pytest.param(100.0, True, marks=pytest.mark.long)])
def test_where_more_stages_promise_much_they_are_tried(
    share: float, deeper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers fit, and with half the batch for each of two replicas take less time than one on twice the devices."""
    asked: list[int] = []
    finer = PipelineWays.finer

    def told(ways: PipelineWays, pieces: int, deadline: Deadline) -> PipelineWays | None:
        asked.append(pieces)
        return finer(ways, pieces, deadline)

    monkeypatch.setattr(PipelineWays, "finer", told)
    monkeypatch.setattr("rhino.pipeline.search.deeper._PROMISING", share)
    assert planned(40_000_000).stages <= 16
    assert asked == [48] * deeper
