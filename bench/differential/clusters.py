"""The clusters that programs are planned for: links that cost nothing, so that all that can be split is split.

Owns their files. Knows nothing of programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rhino.machine import Cluster


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster and the mesh a program is planned for on it; "" where the search chooses."""

    name: str
    cluster: Cluster
    mesh: str


def _cluster(name: str, devices: int, bandwidth: float, latency_s: float, hosts: int = 1) -> Cluster:
    """Devices so slow, and links so fast, that splitting anything pays."""
    levels: list[dict[str, Any]] = [
        {"name": "intra-host", "size": devices // hosts, "bandwidth_bytes_s": 1e15, "latency_s": 1e-15},
        {"name": "inter-host", "size": "all", "bandwidth_bytes_s": bandwidth, "latency_s": latency_s},
    ]
    if hosts == 1:
        levels = [{**levels[0], "size": "all"}]
    return Cluster.from_dict(
        {
            "schema": 1,
            "name": name,
            "hosts": hosts,
            "devices_per_host": devices // hosts,
            "device": {
                "kind": "cpu",
                "xla_target": "cpu",
                "peak_flops": {"f32": 1e6},
                "memory_bytes": 2**31,
                "memory_bandwidth_bytes_s": 1e6,
            },
            "levels": levels,
            "reduce_scatter": False,
        }
    )


def cluster_of(devices: int) -> Cluster:
    """So many devices on links that cost nothing."""
    return _cluster(f"free-{devices}", devices, 1e15, 1e-15)


def places() -> dict[str, Place]:
    """All of them, by name."""
    free = cluster_of(8)
    found = (
        Place("free-2x4", free, "2x4"),
        Place("free-2x2x2", free, "2x2x2"),
        Place("free-3x2", cluster_of(6), "3x2"),
        Place("hosts", _cluster("hosts", 8, 1e4, 1e-4, hosts=2), ""),
        Place("cpu", Cluster.load("cpu"), ""),
    )
    return {place.name: place for place in found}
