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
    """Blocks of consecutive devices, of `widths` one after the other. Device d is on host d div devices_per_host.

    A block is part of a host or some whole hosts, so that all blocks of a width see the same links.
    """

    cluster: Cluster
    widths: tuple[int, ...]

    @staticmethod
    def of(cluster: Cluster, groups: int) -> Placement:
        """The blocks of a pipeline over all devices of the cluster, as `deal` gives them.

        Raises:
          RhinoError: fewer devices than groups.
        """
        return Placement(cluster, deal(cluster, groups))

    @property
    def groups(self) -> int:
        """How many blocks."""
        return len(self.widths)

    def devices_of(self, group: int) -> range:
        """The devices of a block."""
        first = sum(self.widths[:group])
        return range(first, first + self.widths[group])

    def hosts_of(self, group: int) -> range:
        """The hosts a block has devices on."""
        devices, per_host = self.devices_of(group), self.cluster.devices_per_host
        return range(devices.start // per_host, ceil(devices.stop / per_host))

    def same_host(self, a: int, b: int) -> bool:
        """Whether two different blocks are parts of one host."""
        return self.hosts_of(a) == self.hosts_of(b)

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
            narrow = min(self.widths[src], self.widths[dst])
            return inside.latency_s + nbytes / (max(1, narrow // copies) * inside.exchange_bytes_s)
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


def deal(cluster: Cluster, groups: int) -> tuple[int, ...]:
    """All devices dealt to groups in order, as evenly as parts of hosts and whole hosts allow, the first getting more.

    Raises:
      RhinoError: fewer devices than groups.
    """
    n, hosts, per_host = cluster.num_devices, cluster.hosts, cluster.devices_per_host
    if not 0 < groups <= n:
        raise RhinoError(
            f"{groups} stages for the {n} devices of {cluster.name}", f"give a number of stages from 1 to {n}"
        )
    if groups <= hosts:
        return tuple(per_host * k for k in _shares(hosts, groups))
    # The hosts with fewer groups come first: theirs are wider.
    return tuple(width for k in reversed(_shares(groups, hosts)) for width in _shares(per_host, k))


def _shares(whole: int, parts: int) -> list[int]:
    """A number as so many that differ by one at most, the larger first."""
    return [whole // parts + (i < whole % parts) for i in range(parts)]


def part_of(cluster: Cluster, devices: int) -> Cluster:
    """The first devices of a cluster as a cluster of their own: part of a host, or whole hosts."""
    per_host = cluster.devices_per_host
    if devices % per_host == 0:
        return cluster.with_hosts(devices // per_host)
    kept = [level for level in cluster.levels if level.size < devices]
    joining = cluster.levels[len(kept)]
    levels = (*kept, replace(joining, size=devices))
    return replace(cluster, hosts=1, devices_per_host=devices, levels=levels)
