"""The network of a cluster, as resharding sees it.

Owns the step from links and NICs to one bandwidth per host. Knows nothing about tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.reshard.data import Network


def network_of(cluster: Cluster, devices: Iterable[int] | None = None) -> Network:
    """The hosts of some devices of a cluster, of all where none are given.

    A host's bandwidth is that of all its NICs into the level between hosts, one direction. On one host there is nothing
    to cross, so that without such a level the host gets the bandwidth of its own links.

    RhinoError if a device is not one of the cluster's.
    """
    chosen = sorted(set(range(cluster.num_devices) if devices is None else devices))
    for device in chosen:
        if not 0 <= device < cluster.num_devices:
            raise RhinoError(
                f"device {device} is not one of the {cluster.num_devices} of cluster {cluster.name}",
                f"use devices 0 to {cluster.num_devices - 1}, or more hosts",
            )
    host_of = {device: device // cluster.devices_per_host for device in chosen}
    inside, between = cluster.intra_host, cluster.inter_host
    link = between or inside or cluster.levels[0]
    bandwidth = Fraction(link.bandwidth_bytes_s) * link.nics
    return Network(
        host_of=host_of,
        bandwidth_bytes_s=dict.fromkeys(sorted(set(host_of.values())), bandwidth),
        latency_s=Fraction(link.latency_s) if between else Fraction(0),
        local_bandwidth_bytes_s=Fraction(inside.bandwidth_bytes_s) * inside.nics if inside else None,
    )
