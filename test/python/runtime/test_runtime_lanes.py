"""The network that the processes of a job make."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from rhino.machine import Cluster
from rhino.runtime.here import network_of_processes


@dataclass
class Cpu:
    id: int
    process_index: int
    platform: ClassVar[str] = "cpu"


@dataclass
class Gpu(Cpu):
    partition_index: int
    platform: ClassVar[str] = "gpu"


def test_processes_of_one_host_share_its_nics() -> None:
    cluster = Cluster.load("dgx-h100:2")
    level = cluster.inter_host
    assert level is not None
    host = Fraction(level.bandwidth_bytes_s) * level.nics
    alone = network_of_processes([Gpu(i, i // 8, i // 8) for i in range(16)], cluster)
    assert alone.bandwidth_bytes_s == {0: host, 1: host}
    shared = network_of_processes([Gpu(i, i // 2, i // 8) for i in range(16)], cluster)
    assert shared.bandwidth_bytes_s == dict.fromkeys(range(8), host / 4)
    assert [shared.host_of[i] for i in range(16)] == [i // 2 for i in range(16)]
    assert shared.latency_s == Fraction(level.latency_s)


def test_processes_of_cpus_are_hosts() -> None:
    found = network_of_processes([Cpu(i, i // 2) for i in range(8)], None)
    assert found.host_of == {i: i // 2 for i in range(8)}
    assert len(set(found.bandwidth_bytes_s.values())) == 1
