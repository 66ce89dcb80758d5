"""Where the stages of a pipeline stand in a cluster, and what the links between them carry.

Owns the groups of consecutive devices, the cluster that one group sees, and the time of transfers between groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import ceil, sqrt

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.pipeline.cut import StageMachine
from rhino.pipeline.schedule import warmup_counts
from rhino.pipeline.search.spread import Spread, need_of

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Blocks of consecutive devices, of `widths` one after the other. Device d is on host d div devices_per_host.

    A group is part of a host or some whole hosts, so that all groups of a width see the same links. `starts` is the
    first device of each, given for groups that are elsewhere.
    """

    cluster: Cluster
    widths: tuple[int, ...]
    starts: tuple[int, ...] = ()
    _hosts: tuple[range, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        per_host, starts = self.cluster.devices_per_host, self.starts or tuple(accumulate(self.widths, initial=0))[:-1]
        hosts = [range(a // per_host, ceil((a + n) / per_host)) for a, n in zip(starts, self.widths, strict=True)]
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "_hosts", tuple(hosts))

    @staticmethod
    def of(cluster: Cluster, groups: int) -> Placement:
        """The groups of a pipeline over all devices of the cluster, as `deal` gives them.

        Raises:
          RhinoError: fewer devices than groups.
        """
        return Placement(cluster, deal(cluster, groups))

    @property
    def groups(self) -> int:
        """How many groups."""
        return len(self.widths)

    def devices_of(self, group: int) -> range:
        """The devices of a group."""
        return range(self.starts[group], self.starts[group] + self.widths[group])

    def hosts_of(self, group: int) -> range:
        """The hosts a group has devices on."""
        return self._hosts[group]

    def same_host(self, a: int, b: int) -> bool:
        """Whether two different groups are parts of one host."""
        return self.hosts_of(a) == self.hosts_of(b)

    def transfer_s(self, src: int, dst: int, nbytes: float, target: Spread | None = None) -> float:
        """Seconds to bring a value from one group to another, nothing else on the way: the resharding's bound.

        That is `max(send, recv)` of 2211.05322's unit tasks, whose holders share out what they all have: all parts of
        the source send an equal share, and every part of the target receives what it needs, once. Parts are hosts, by
        their NICs; within one host they are devices, by theirs. What several hosts need goes from one to the next, in
        as many chunks as are best.

        Args:
          nbytes: bytes of the value, all shards together.
          target: how it lies on the group that needs it; None where it is split over all devices.
        """
        if src == dst or not nbytes:
            return 0.0
        inside = self.same_host(src, dst)
        level = self.cluster.intra_host if inside else self.cluster.inter_host
        if level is None:
            return 0.0
        ports = 1 if inside else level.nics
        whole_s = nbytes / (ports * level.exchange_bytes_s)
        width = self.widths[dst]
        spread = target or Spread((width,), (True,))
        need = need_of(spread, 1 if inside else min(width, self.cluster.devices_per_host))
        senders = self.widths[src] if inside else len(self.hosts_of(src))
        bound_s = whole_s * max(need.share, 1 / senders)
        return bound_s + (level.latency_s if inside else _chain_s(bound_s, need.readers, level.latency_s))

    def start_s(self, src: int, dst: int) -> float:
        """Seconds before the first byte of a transfer between two groups arrives."""
        if src == dst:
            return 0.0
        level = self.cluster.intra_host if self.same_host(src, dst) else self.cluster.inter_host
        return level.latency_s if level is not None else 0.0

    def rates(self, nbytes: float = 1.0, stages: int = 0) -> tuple[Matrix, Matrix]:
        """Between every two stages, `start_s`, and the further seconds of so many bytes, split over all devices.

        Args:
          stages: dealt to the groups in turn; by default one of each.
        """
        on = [s % self.groups for s in range(stages or self.groups)]
        start_s = tuple(tuple(self.start_s(a, b) for b in on) for a in on)
        rest_s = [[self.transfer_s(a, b, nbytes) - self.start_s(a, b) for b in on] for a in on]
        return start_s, tuple(map(tuple, rest_s))

    def machine(self, microbatches: int, schedule: str, limit_bytes: int = 0) -> StageMachine:
        """What a cut is planned for where each group computes its stage on all of its devices at once.

        Args:
          schedule: says how many micro-batches' activations a stage keeps.
          limit_bytes: of one device; 0 for what plans may use of its memory.
        """
        latency_s, byte_s = self.rates()
        return StageMachine(
            self.groups,
            microbatches,
            speeds=tuple(map(float, self.widths)),
            in_flight=warmup_counts(schedule, range(self.groups, 0, -1), microbatches),
            memory_limits=tuple((limit_bytes or self.cluster.device.plan_bytes) * width for width in self.widths),
            byte_s=byte_s,
            latency_s=latency_s,
        )

    def links(self, src: int, dst: int) -> tuple[str, ...]:
        """What a transfer occupies: the NICs of both groups' hosts, one way; within a host nothing that others do."""
        a, b = self.hosts_of(src), self.hosts_of(dst)
        if self.same_host(src, dst):
            return (f"host{a[0]}:{src}>{dst}",)
        return (*(f"nic{h}>" for h in a), *(f">nic{h}" for h in b))


def _chain_s(bound_s: float, hosts: int, latency_s: float) -> float:
    """What a broadcast along so many hosts adds to its bound: `(K + hosts - 1)(a + b/K) - b` for the best K."""
    if not latency_s:
        return 0.0
    rest = hosts - 1
    chunks = max(1.0, sqrt(rest * bound_s / latency_s))
    return (chunks + rest) * latency_s + rest * bound_s / chunks


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
