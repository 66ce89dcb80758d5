"""`Cluster.local`: what jax's devices become. GPUs are stand-ins with the attributes that jax's devices have."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.machine.local import describe, host_memory_bytes, host_of, hosts_of


@dataclass
class FakeDevice:
    platform: str
    device_kind: str
    bytes_limit: int = 0
    process_index: int = 0

    def memory_stats(self) -> dict[str, int] | None:
        return {"bytes_limit": self.bytes_limit} if self.bytes_limit else None


CPU = FakeDevice("cpu", "cpu")


def test_virtual_devices_share_one_host() -> None:
    preset = Cluster.load("cpu")
    for n in (1, 2, 8, 12):
        cluster = describe(CPU, 1, n)
        assert (cluster.name, cluster.num_devices) == ("local:1", n)
        assert cluster.device.peak("f32") * n == pytest.approx(preset.device.peak("f32") * 8)
        assert cluster.device.memory_bytes == host_memory_bytes() // n
        assert cluster.levels[0].bandwidth_bytes_s * n == pytest.approx(preset.levels[0].bandwidth_bytes_s * 8)
        assert cluster.device.xla_target == "cpu"
        assert not cluster.reduce_scatter


def test_processes_are_hosts() -> None:
    cluster = describe(CPU, 3, 4)
    assert (cluster.name, cluster.num_devices) == ("local:3", 12)
    assert [level.size for level in cluster.levels] == [4, 12]


@dataclass
class FakeGpu(FakeDevice):
    partition_index: int = 0


def test_gpus_of_several_processes_are_on_one_host() -> None:
    # One process for each GPU, as SLURM starts them: 2 hosts of 4.
    gpus = [FakeGpu("gpu", "NVIDIA H100", process_index=i, partition_index=i // 4) for i in range(8)]
    assert [host_of(gpu) for gpu in gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert hosts_of(gpus) == (2, 4)


def test_processes_on_cpus_are_hosts_of_their_own() -> None:
    assert hosts_of([FakeDevice("cpu", "cpu", process_index=i // 2) for i in range(6)]) == (3, 2)
    # In a job XLA counts the CPU devices of one machine as one partition, too.
    assert hosts_of([FakeGpu("cpu", "cpu", process_index=i // 2, partition_index=0) for i in range(6)]) == (3, 2)


def test_hosts_of_different_size_are_an_error() -> None:
    gpus = [FakeGpu("gpu", "NVIDIA H100", process_index=i, partition_index=i // 4) for i in range(7)]
    with pytest.raises(RhinoError, match="different numbers of devices: 4 on host 0, 3 on host 1"):
        hosts_of(gpus)


@pytest.mark.parametrize(
    ("kind", "limit", "device", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", 63 * 10**9, "h100", 989.4e12),
        ("NVIDIA H200", 0, "h200", 989.4e12),
        ("NVIDIA A100-SXM4-40GB", 31 * 10**9, "a100", 312e12),
        ("Tesla V100-SXM2-16GB", 12 * 10**9, "v100", 15.7e12),
        ("NVIDIA B200", 0, "b200", 2250e12),
    ],
)
def test_gpus_take_a_presets_rates_and_their_own_number_and_memory(
    kind: str, limit: int, device: str, bf16: float
) -> None:
    cluster = describe(FakeDevice("gpu", kind, limit), 2, 2)
    assert (cluster.name, cluster.devices_per_host, cluster.device.kind) == ("local:2", 2, device)
    assert cluster.device.peak("bf16") == bf16
    assert [level.size for level in cluster.levels] == [2, 4]
    if limit:
        assert cluster.device.memory_bytes == limit
        assert "memory_stats" in cluster.source_of("device.memory_bytes")
    assert cluster.description == kind


def test_memory_decides_between_presets_of_one_chip() -> None:
    # 75 % of the memory is what jax preallocates, and so what it reports as its limit.
    small = describe(FakeDevice("gpu", "NVIDIA A100-SXM4-40GB", 31 * 10**9), 1, 8)
    large = describe(FakeDevice("gpu", "NVIDIA A100-SXM4-80GB", 63 * 10**9), 1, 8)
    assert small.device.memory_bandwidth_bytes_s == Cluster.load("dgx-a100-40g").device.memory_bandwidth_bytes_s
    assert large.device.memory_bandwidth_bytes_s == Cluster.load("dgx-a100").device.memory_bandwidth_bytes_s


def test_an_unknown_gpu_is_an_error_that_says_what_to_run() -> None:
    with pytest.raises(RhinoError, match=r"no values for device 'AMD Instinct'; known: a100, .*calibrate -o FILE"):
        describe(FakeDevice("gpu", "AMD Instinct"), 1, 1)


def test_local_describes_the_devices_of_this_process() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_platforms", "cpu")
    cluster = Cluster.load("local")
    assert cluster == Cluster.local()
    assert cluster.num_devices == len(jax.devices())
    assert Cluster.from_dict(cluster.to_dict()) == cluster
