"""The clusters that published runs were measured on: a preset for each GPU, and what a network's name changes of it.

Owns these two tables, per hardware and never per row. A rate that is in no preset has its source beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rhino.errors import RhinoError
from rhino.machine import Cluster


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the table of runs names it: the preset it is in, and what is another one's there. 0 is the preset's.

    `power` is its power limit over that of the preset's device; products and attention are as fast in proportion.
    """

    preset: str
    memory_bytes: int = 0
    memory_bandwidth_bytes_s: float = 0.0
    power: float = 1.0


@dataclass(frozen=True, slots=True)
class Network:
    """NICs of a host, and bytes/s of one in one direction. 0 is the preset's."""

    nics: int
    bandwidth_bytes_s: float


GPUS: Mapping[str, Gpu] = {
    "V100-16GB": Gpu("p3.16xlarge"),
    "V100-32GB": Gpu("p3.16xlarge", memory_bytes=2 * 16935682048),
    "A100-40GB": Gpu("dgx-a100-40g"),
    "A100-80GB": Gpu("dgx-a100"),
    "H100-80GB": Gpu("dgx-h100"),
    # torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: 96 GB of HBM2e at 2.4 TB/s, 500 of 700 W.
    "H100-96GB-HBM2e-500W": Gpu("dgx-h100", 96 * 2**30, 2.4e12, power=500 / 700),
    "H200-141GB": Gpu("h200"),
    "B200": Gpu("dgx-b200"),
    "B300": Gpu("dgx-b300"),
    "GB200": Gpu("gb200-nvl72"),
    "GB300": Gpu("gb300-nvl72"),
}
# By the first pattern that the row's network has. What none has, and what is empty, are the preset's own links.
NETWORKS: tuple[tuple[str, Network], ...] = (
    ("Omni-Path 100", Network(4, 12.5e9)),
    ("EFA", Network(4, 12.5e9)),  # AWS, p4d.24xlarge: 400 Gbit/s by four adapters
    ("1600 Gbps", Network(8, 25e9)),
    ("8x200 Gb/s|HDR200", Network(8, 25e9)),
    ("4x200 Gbps", Network(4, 25e9)),
    ("4x EDR", Network(4, 12.5e9)),
    ("DGX-2", Network(8, 12.5e9)),  # NVIDIA DGX-2 datasheet: eight ports of 100 Gbit/s
    ("^400 Gbps per node", Network(4, 12.5e9)),
    ("^800 Gbps per node", Network(8, 12.5e9)),
    ("25 Gbps between hosts", Network(1, 3.125e9)),
    ("RDMA per GPU|RDMA per host|RoCE 400", Network(8, 50e9)),
    ("InfiniBand NDR", Network(4, 50e9)),  # hosts of four H200 with an adapter each
)


def cluster_of(gpu: str, gpus: int, per_host: int, network: str, notes: str = "") -> Cluster:
    """The devices of a run as a cluster.

    Raises:
      RhinoError: its power is limited and it is not told how far, there is no preset of the GPU, or its hosts do not
        make up so many devices.
    """
    if "power limited" in notes:
        raise RhinoError(f"a {gpu} whose power limit is not told", "")
    known = GPUS.get(gpu)
    if known is None:
        raise RhinoError(f"no preset of {gpu}", "it is not among the GPUs of bench/_published_hardware.py")
    try:
        base = Cluster.load(known.preset)
    except RhinoError:
        raise RhinoError(f"no preset {known.preset} of {gpu}", "see rhino cluster list") from None
    device = replace(
        base.device,
        memory_bytes=known.memory_bytes or base.device.memory_bytes,
        memory_bandwidth_bytes_s=known.memory_bandwidth_bytes_s or base.device.memory_bandwidth_bytes_s,
    )
    of_host = per_host or base.devices_per_host
    if gpus < of_host:
        of_host = gpus
    if gpus % of_host:
        raise RhinoError(f"{gpus} GPUs are not whole hosts of {of_host}", "")
    levels = [replace(v, size=of_host) if v.size == base.devices_per_host else v for v in base.levels]
    found = next((given for pattern, given in NETWORKS if re.search(pattern, network)), None)
    if found is not None:
        at = next(i for i, v in enumerate(base.levels) if v is base.inter_host)
        levels[at] = replace(levels[at], nics=found.nics, bandwidth_bytes_s=found.bandwidth_bytes_s)
    hosts = gpus // of_host
    return replace(base, device=device, devices_per_host=of_host, hosts=hosts, levels=tuple(levels))


def limited(cluster: Cluster, gpu: str) -> Cluster:
    """A cluster as its GPU's power limit has it."""
    power, device = GPUS[gpu].power, cluster.device
    if power == 1 or device.kernels is None:
        return cluster
    attention = {name: rates.slowed(power) for name, rates in device.kernels.attention.items()}
    device = replace(device, kernels=replace(device.kernels, attention=attention))
    efficiency = replace(cluster.efficiency, matmul=cluster.efficiency.matmul * power)
    return replace(cluster, device=device, efficiency=efficiency)
