"""What collectives that computing waits for leave of what it could hide in a loop over layers."""

from __future__ import annotations

import pytest
from scanned_layers import layers_of

from rhino.machine import Cluster
from rhino.program.memory import lifetimes
from rhino.sharding import Options, plan_sharding
from rhino.sharding.evaluate import predict


@pytest.mark.parametrize(
    ("batch", "cluster", "crowded"),
    [
        # Data parallel over hosts: all that is sent in a trip can be put off.
        pytest.param(4096, "p3.16xlarge:2", False, id="nothing in the way"),
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
