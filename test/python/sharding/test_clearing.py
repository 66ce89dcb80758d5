"""Which collectives are in the way of gradients' sums that computing hides in a loop over layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from search_programs import graph_of, spec

from rhino.machine import Cluster
from rhino.sharding import Options, plan_sharding
from rhino.sharding.crowding import cleared, crowding
from rhino.sharding.planner import MeshSearch
from rhino.sharding.time_model import TimeModel

LAYERS = 8


def step(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
    def layer(h: jax.Array, w: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return jnp.tanh(h @ w[0]) @ w[1], None

    def loss(weights: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()

    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, jax.grad(loss)(weights))


@pytest.mark.parametrize(
    ("batch", "cluster", "waits"),
    [
        # Data parallel over hosts: all that is sent in a trip can be put off.
        pytest.param(4096, "p3.16xlarge:2", 0, id="nothing in the way"),
        # Layers are divided in a host, and a trip waits for what it makes once a layer.
        pytest.param(256, "p3.16xlarge:2", LAYERS, id="once a layer"),
        pytest.param(65536, "dgx-h100:1", 0, id="hides little"),
    ],
)
def test_collectives_in_loops_that_computing_waits_for(batch: int, cluster: str, waits: int) -> None:
    weights = spec(LAYERS, 2048, 8192), spec(LAYERS, 8192, 2048)
    given = Cluster.load(cluster)
    mesh = (2, 8) if given.num_devices == 16 else (8,)
    found = plan_sharding(graph_of(step, weights, spec(batch, 2048), donate=(0,)), given, Options(mesh=mesh))
    assert crowding(found.costs, found.states, found.predicted) == waits


def test_a_plan_with_nothing_in_the_way_is_looked_for_on_the_same_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = spec(LAYERS, 2048, 8192), spec(LAYERS, 8192, 2048)
    graph, cluster = graph_of(step, weights, spec(64, 2048), donate=(0,)), Cluster.load("p3.16xlarge:2")
    search = MeshSearch(graph, TimeModel(cluster), Options(mesh=(2, 8)))
    search.run()
    predicted, chosen = search.outcome.best
    given = chosen.setting, search.limit, predicted, chosen.best
    # Here it is far slower: so dear are collectives that computing waits for nowhere.
    monkeypatch.setattr("rhino.sharding.crowding._DEARER", 100.0)
    other, plan = cleared(*given, near=10.0)
    assert predicted.step_time_s < other.step_time_s == plan.objective
    assert crowding(chosen.setting.costs, plan.states, other) < crowding(
        chosen.setting.costs, chosen.best.states, predicted
    )
    assert cleared(*given, near=0.01) == (predicted, chosen.best)
    # What does not fit is none.
    tight = replace(search.limit, nbytes=other.memory.peak_bytes - 1)
    assert cleared(chosen.setting, tight, predicted, chosen.best, near=10.0) == (predicted, chosen.best)
