"""What collectives in the way leave of what computing could hide, in loops over layers and where layers are in none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from scanned_layers import layers_of
from search_programs import graph_of, spec

from rhino.machine import Cluster
from rhino.program.memory import lifetimes
from rhino.sharding import Options, plan_sharding
from rhino.sharding.evaluate import predict
from rhino.sharding.overlap import WINDOW


@pytest.mark.parametrize(
    ("batch", "cluster", "crowded"),
    [
        # Data parallel over hosts: all but what a layer gathers first can be put off.
        pytest.param(32768, "p3.16xlarge:2", False, id="nothing in the way"),
        # Layers are divided in a host, and a trip waits for what it makes; sums over hosts take longer than a layer.
        pytest.param(64, "p3.16xlarge:2", True, id="once a layer"),
        # There is room for all between two of these.
        pytest.param(65536, "dgx-h100:1", False, id="long layers"),
    ],
)
def test_what_is_in_the_way_of_what_computing_could_hide(
    batch: int, cluster: str, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Cluster.load(cluster)
    mesh = (2, 8) if given.num_devices == 16 else (8,)
    graph = layers_of(batch)
    found = plan_sharding(graph, given, Options(mesh=mesh))
    predicted = found.predicted
    assert (predicted.crowded_s > 0.01 * predicted.step_time_s) == crowded
    monkeypatch.setattr("rhino.sharding.evaluate.hidden_in_trips", lambda *args: {})
    free = predict(found.costs, found.states, lifetimes(graph))
    assert free.crowded_s == 0
    assert free.hidden_s == pytest.approx(predicted.hidden_s + predicted.crowded_s)
    assert free.step_time_s == pytest.approx(predicted.step_time_s - predicted.crowded_s)


def test_layers_in_no_loop() -> None:
    """Data parallel over hosts, all that is sent is sums: they begin when the last layer's gradient is there."""
    width = 4096

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        return [w - 1e-3 * g for w, g in zip(weights, jax.grad(loss)(weights, x), strict=True)]

    graph = graph_of(step, [spec(width, width)] * 4, spec(8 * width, width), donate=(0,))
    found = plan_sharding(graph, Cluster.load("p3.16xlarge:2"), Options(mesh=(16,)))
    assert not found.costs.hiding.within
    # Of four products forward, three for what they read and four for weights, the latter seven.
    assert found.predicted.room[0] == pytest.approx(7 / 11, rel=0.01)
    assert found.predicted.crowded_s == pytest.approx(found.predicted.hidden_s * (WINDOW * 11 / 7 - 1), rel=0.1)
