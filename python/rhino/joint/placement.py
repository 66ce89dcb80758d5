"""Where the stages of a pipeline stand in a cluster, and what the links between them carry.

Owns the blocks of consecutive devices, the cluster that one block sees, and the time of transfers between blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from rhino.cluster import Cluster
from rhino.errors import RhinoError


@dataclass(frozen=True, slots=True)
class Placement:
    """`groups` blocks of `width` consecutive devices each. Device d of the cluster is on host d div devices_per_host.

    A block is part of a host or some whole hosts, so that all blocks see the same links.
    """

    cluster: Cluster
    groups: int
    width: int

    @staticmethod
    def of(cluster: Cluster, groups: int) -> Placement:
        """The blocks of a pipeline over all devices of the cluster.

        Raises:
          RhinoError: the devices do not divide into such blocks.
        """
        n, per_host = cluster.num_devices, cluster.devices_per_host
        width = n // groups if groups > 0 else 0
        if width < 1 or n % groups or (per_host % width and width % per_host):
            raise RhinoError(
                f"{groups} stages do not divide the {n} devices of cluster {cluster.name} into equal parts of hosts",
                f"give a number of stages that divides {n}",
            )
        return Placement(cluster, groups, width)

    @property
    def block(self) -> Cluster:
        """The cluster one block is."""
        return part_of(self.cluster, self.width)

    def hosts_of(self, group: int) -> range:
        """The hosts a block has devices on."""
        per_host = self.cluster.devices_per_host
        return range(group * self.width // per_host, ceil((group + 1) * self.width / per_host))

    def same_host(self, a: int, b: int) -> bool:
        """Whether two blocks are parts of one host."""
        return self.width < self.cluster.devices_per_host and self.hosts_of(a) == self.hosts_of(b)

    def transfer_s(self, src: int, dst: int, nbytes: float, copies: int = 1) -> float:
        """Seconds to bring a value from one block to another, nothing else on the way.

        Args:
          nbytes: bytes of the value, all shards together, each sent once: what is needed several times in a block is
            shared there over its faster links.
          copies: parts of the block that hold all of the value, and so could send in parallel; 1 where it is split
            over all devices.
        """
        if src == dst or not nbytes:
            return 0.0
        cluster = self.cluster
        inside, across = cluster.intra_host, cluster.inter_host
        if self.same_host(src, dst):
            if inside is None:
                return 0.0
            return inside.latency_s + nbytes / (max(1, self.width // copies) * inside.exchange_bytes_s)
        if across is None:
            return 0.0
        # The NICs of all hosts of the narrower side work at once.
        nics = min(len(self.hosts_of(src)), len(self.hosts_of(dst))) * across.nics
        return across.latency_s + nbytes / (nics * across.exchange_bytes_s)

    def link(self, src: int, dst: int) -> str:
        """What a transfer occupies: blocks of one host that send out of it share its NIC, one way."""
        if self.same_host(src, dst):
            return f"host{self.hosts_of(src)[0]}:{src}>{dst}"
        return f"nic{self.hosts_of(src)[0]}>nic{self.hosts_of(dst)[0]}"


def part_of(cluster: Cluster, devices: int) -> Cluster:
    """The first devices of a cluster as a cluster of their own: part of a host, or whole hosts."""
    per_host = cluster.devices_per_host
    if devices % per_host == 0:
        return cluster.with_hosts(devices // per_host)
    kept = [level for level in cluster.levels if level.size < devices]
    joining = cluster.levels[len(kept)]
    levels = (*kept, replace(joining, size=devices))
    return replace(cluster, hosts=1, devices_per_host=devices, levels=levels)
