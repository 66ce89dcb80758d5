"""The network of a cluster."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import pytest

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.reshard.networks import network_of


def test_network_of_a_preset() -> None:
    cluster = Cluster.load("dgx-h100:3")
    level = cluster.inter_host
    assert level is not None
    network = network_of(cluster)
    assert len(network.host_of) == 24
    assert all(host == device // 8 for device, host in network.host_of.items())
    assert network.bandwidth_bytes_s == dict.fromkeys(range(3), Fraction(level.bandwidth_bytes_s) * level.nics)
    assert network.latency_s == Fraction(level.latency_s)
    inside = cluster.intra_host
    assert inside is not None
    assert network.local_bandwidth_bytes_s == Fraction(inside.bandwidth_bytes_s) * inside.nics


def test_network_of_some_devices() -> None:
    network = network_of(Cluster.load("dgx-h100:3"), range(6, 10))
    assert network.host_of == {6: 0, 7: 0, 8: 1, 9: 1}
    assert sorted(network.bandwidth_bytes_s) == [0, 1]


def test_one_host_needs_no_links_between_hosts() -> None:
    network = network_of(Cluster.load("dgx-h100:1"))
    assert set(network.host_of.values()) == {0}
    assert network.bandwidth_bytes_s[0] > 0


def test_other_devices_are_refused() -> None:
    with pytest.raises(RhinoError, match="device 24 is not one of the 24 of cluster dgx-h100:3"):
        network_of(Cluster.load("dgx-h100:3"), [24])


def test_planning_loads_no_solver_and_no_array_library() -> None:
    names = "('numpy', 'scipy', 'highspy', 'jax')"
    program = f"import rhino.reshard, sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
