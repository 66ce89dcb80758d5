"""What a cluster is: hosts x devices, what one device can do, and the levels of links that join devices.

Owns the data model and its invariants. Reading files, presets and measuring live beside it, loaded on use.
Knows neither jax nor MLIR, and nothing about programs or plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

from rhino.errors import RhinoError
from rhino.machine.protocols import Protocol
from rhino.machine.rates import DTYPES, KernelRates, ProductRates
from rhino.program.element_types import element_type
from rhino.program.operations import COLLECTIVES
from rhino.schema.kinds import Bool, Float, Int, ListOf, MapOf, String
from rhino.schema.records import described, record, told, write

SCHEMA = 1
# What executes a type the device has no rate for: the next wider type. XLA: dots-widened, elements-widened
_FALLBACK = {"f8": "f16", "i8": "f32", "f16": "f32", "bf16": "f32", "tf32": "f32"}


# The share of memory kept free for what predicted peaks miss (XLA's were up to a tenth higher where plans were tight)
# and for what is not the program's: the driver's context, NCCL's buffers.
RESERVE = 0.1


def rate_name(name: str) -> str:
    """The key of `peak_flops` for a spelling of its type, `bf16` of `bfloat16`, `f8` of `f8E5M2`; else the name."""
    element = element_type(name) or name
    return "f8" if element.startswith("f8E") else element


def _rate_key(dtype: str) -> str:
    """The key of `Device.peak_flops` that prices an MLIR element type."""
    if dtype in DTYPES:
        return dtype
    if dtype.startswith("complex<"):
        return _rate_key(dtype[len("complex<") : -1])
    if dtype.startswith(("f8", "f6", "f4")):
        return "f8"
    # Wider integers have no published matrix rate; they run in the same lanes as f32.
    return "i8" if dtype.lstrip("sui") in ("1", "2", "4", "8") else "f32"


def source_path(path: str) -> str:
    """The path of a field in `Cluster.sources`, with the type of a rate spelled as in `DTYPES`."""
    rates = "device.peak_flops."
    return rates + rate_name(path.removeprefix(rates)) if path.startswith(rates) else path


_NAME = String(filled=True)
_RATE = Float(above=0)
_SHARE = Float(above=0, maximum=1)


@described
class Device:
    """One accelerator."""

    kind: str = told(_NAME, 'the name of the chip, "h100"')
    xla_target: str = told(_NAME, 'the target of `rhino compile --target`, "h100" or "cpu"')
    peak_flops: Mapping[str, float] = told(
        MapOf(_RATE, DTYPES, rate_name),
        "the FLOP/s by type, dense (no structured sparsity), of f32 at least",
        hash=False,
    )
    memory_bytes: int = told(Int(1), "the bytes of one device's memory that a program can use")
    memory_bandwidth_bytes_s: float = told(_RATE, "the peak bytes per second between it and its memory, both ways")
    kernels: KernelRates | None = told(record(KernelRates), "what kernels take beyond the rates above", default=None)
    host_bandwidth_bytes_s: float | None = told(
        _RATE,
        "the bytes per second between it and its host's memory, one way; without it nothing is kept there",
        default=None,
    )

    def __str__(self) -> str:
        return self.kind

    @property
    def plan_bytes(self) -> int:
        """What plans may take unless told otherwise: the memory without `RESERVE`."""
        return int(self.memory_bytes * (1 - RESERVE))

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s of an MLIR element type or of a key of `peak_flops`.

        A type without a rate of its own runs at the rate of the type XLA widens it to; f64 at half of f32.
        """
        key = _rate_key(dtype)
        while key not in self.peak_flops:
            if key == "f64":
                return self.peak_flops["f32"] / 2
            key = _FALLBACK[key]
        return self.peak_flops[key]

    def matmul_peak(self, dtype: str) -> float:
        """As `peak`, for dots and convolutions: f32 ones run in TF32 where there is any (XLA's default precision)."""
        return self.peak(self._matmul_key(dtype))

    def product_rates(self, dtype: str) -> ProductRates | None:
        """What products of an MLIR element type take; None where the device tells no kernels.

        A type without rates of its own has those of bf16, scaled by how much higher its matrix peak is.
        """
        if self.kernels is None or not self.kernels.products:
            return None
        key = self._matmul_key(dtype)
        while key not in self.peak_flops and key in _FALLBACK:
            key = _FALLBACK[key]
        if key in self.kernels.products:
            return self.kernels.products[key]
        base = "bf16" if "bf16" in self.kernels.products else min(self.kernels.products)
        return self.kernels.products[base].scaled(self.peak(key) / self.peak(base))

    def _matmul_key(self, dtype: str) -> str:
        key = _rate_key(dtype)
        return "tf32" if key == "f32" and self.peak("tf32") > self.peak("f32") else key


@described
class Level:
    """One level of links. It joins groups of `size` consecutive devices out of the groups of the level below."""

    name: str = told(_NAME, 'a name, "intra-host" or "inter-host"')
    # Of the last level every device of the cluster.
    size: int = told(
        Int(1, ("host", "all")), "the devices in one group of this level, `host`, or `all` for the last", optional=True
    )
    bandwidth_bytes_s: float = told(_RATE, "the bytes per second of one NIC (or port) in one direction")
    latency_s: float = told(Float(0), "the seconds of one hop")
    nics: int = told(
        Int(1), "the NICs that each group of the level below (a device, for the first) has into this one", default=1
    )
    duplex: str = told(
        String(("full", "half")), "whether a NIC sends and receives that much at once, or shares it", default="full"
    )
    # What one device copies while all do is then the bandwidth, and the latency what each doubling of a group adds to
    # the meeting of its threads.
    medium: str = told(
        String(("links", "memory")),
        "memory where devices are threads of one process",
        when="is_memory",
        default="links",
    )
    protocols: Mapping[str, tuple[Protocol, ...]] = told(
        MapOf(ListOf(record(Protocol), filled=True), COLLECTIVES),
        "by kind of collective the ways to do it, of which the fastest counts; without, the textbook's rings",
        when="protocols",
        default_factory=dict,
        hash=False,
    )

    @property
    def is_memory(self) -> bool:
        """Whether its devices are threads of one process, which meet in memory."""
        return self.medium == "memory"

    @property
    def exchange_bytes_s(self) -> float:
        """Bytes/s sent by one NIC that receives as much at the same time, as in every ring."""
        return self.bandwidth_bytes_s if self.duplex == "full" else self.bandwidth_bytes_s / 2


@described
class Efficiency:
    """Fractions, in (0, 1], of the peaks that real kernels reach: matmul FLOP/s, memory bandwidth, convolution FLOP/s.

    Where `convolution`, `attention` or `attention_backward` are not given (0), these reach what matmuls do.
    """

    matmul: float = told(_SHARE, "a fraction in (0, 1]", default=1.0)
    memory: float = told(_SHARE, "a fraction in (0, 1]", default=1.0)
    convolution: float = told(_SHARE, "a fraction in (0, 1]", when="convolution", default=0.0)
    attention: float = told(_SHARE, "a fraction in (0, 1]", when="attention", default=0.0)
    attention_backward: float = told(_SHARE, "a fraction in (0, 1]", when="attention_backward", default=0.0)

    def of(self, what: str) -> float:
        """The fraction of the peak FLOP/s that an operation ("stablehlo.convolution") or a kernel's rate reaches."""
        own = {
            "stablehlo.convolution": self.convolution,
            "attention": self.attention,
            "attention-backward": self.attention_backward,
        }
        return own.get(what, 0.0) or self.matmul


@described
class Cluster:
    """Hosts of equal devices. Device i is on host `i // devices_per_host`; `levels` go from the fastest outwards.

    `name` is "base:hosts", "dgx-h100:4"; it follows `hosts` when a copy changes them, and so does the last level's
    size. `sources` says where each value comes from, by field path ("device.memory_bytes", "levels.inter-host", ..);
    a source covers the fields below its path. `device_ids` are jax's numbers of the devices that are meant, of a
    cluster that is here: a plan does not depend on them, and files do not keep them. Empty for the first ones.
    """

    name: str = told(_NAME, "a short name of the cluster")
    hosts: int = told(Int(1), "the number of hosts", optional=True)
    devices_per_host: int = told(Int(1), "the number of devices of a host")
    device: Device = told(record(Device), "what one device is")
    levels: tuple[Level, ...] = told(ListOf(record(Level), filled=True), "the levels of links, the fastest first")
    reduce_scatter: bool = told(Bool(), "whether XLA emits reduce-scatter", default=True)
    efficiency: Efficiency = told(record(Efficiency), "the fractions of peak that are reached", default=Efficiency())
    description: str = told(String(), "a sentence, or nothing", default="")
    sources: Mapping[str, str] = told(
        MapOf(_NAME, spell=source_path), "by field a document, a URL or a measurement", default_factory=dict, hash=False
    )
    device_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.hosts, bool) or not isinstance(self.hosts, int) or self.hosts < 1:
            raise RhinoError(
                f"cluster {self.base_name}: hosts: {self.hosts!r} is not a positive integer", "give 1 or more hosts"
            )
        if not self.levels:
            raise RhinoError(f"cluster {self.base_name}: levels: no level of links", "describe at least one level")
        joins_hosts = any(level.size >= self.devices_per_host for level in self.levels[:-1])
        if self.hosts > 1 and not (joins_hosts or self.devices_per_host == 1):
            raise RhinoError(
                f"cluster {self.base_name}: levels do not join its {self.hosts} hosts",
                f"add a level after one of size {self.devices_per_host}, or use one host",
            )
        object.__setattr__(self, "name", f"{self.base_name}:{self.hosts}")
        last = replace(self.levels[-1], size=self.num_devices)
        object.__setattr__(self, "levels", (*self.levels[:-1], last))

    @property
    def base_name(self) -> str:
        """The name without the number of hosts: "dgx-h100"."""
        return self.name.split(":")[0]

    def limited(self, nbytes: int) -> Cluster:
        """The cluster with devices of which plans may take so many bytes; the same for 0, or where they have less."""
        if not 0 < nbytes < self.device.plan_bytes:
            return self
        return replace(self, device=replace(self.device, memory_bytes=ceil(nbytes / (1 - RESERVE))))

    @property
    def num_devices(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def intra_host(self) -> Level | None:
        """The first level that joins all devices of a host, and of others where it is an NVLink domain of several.

        None when hosts have one device and no such level.
        """
        per_host = self.devices_per_host
        return next((v for v in self.levels if v.size == per_host or v.size > per_host > 1), None)

    @property
    def inter_host(self) -> Level | None:
        """The first level beyond a host, its NICs those of a host, or None when the file describes none.

        Of hosts within one domain these are the ports of a host's devices; of several domains a host's part of theirs.
        """
        per_host = self.devices_per_host
        for below, level in zip(self.levels, self.levels[1:], strict=False):
            if below.size == per_host:
                return level
            if below.size > per_host > 1:
                if self.num_devices > below.size:
                    return replace(level, nics=max(1, level.nics * per_host // below.size))
                return replace(below, nics=below.nics * per_host)
        return self.levels[0] if per_host == 1 and self.hosts > 1 else None

    @property
    def domain(self) -> int:
        """Devices that `intra_host` joins: those of a host, or of all hosts of an NVLink domain."""
        inside = self.intra_host
        return self.devices_per_host if inside is None else min(inside.size, self.num_devices)

    def with_hosts(self, hosts: int) -> Cluster:
        """The same cluster with another number of hosts. RhinoError if not positive or nothing joins hosts."""
        return replace(self, hosts=hosts)

    def source_of(self, path: str) -> str:
        """Where the value at a field path comes from: the source of the nearest enclosing path, or ""."""
        while path:
            if path in self.sources:
                return self.sources[path]
            path = path.rpartition(".")[0]
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the fields of the YAML schema, in its order; `from_dict` reads it back unchanged."""
        first = {"schema": SCHEMA, "name": self.base_name, "description": self.description}
        data = {**first, **write(self), **first}
        data["levels"][-1]["size"] = "all"
        return data

    @staticmethod
    def from_dict(data: Mapping[str, Any], where: str = "cluster") -> Cluster:
        """The cluster described by plain data. RhinoError "<where>: field: cause" on the first bad field."""
        from rhino.machine.schema import read_cluster
        from rhino.schema.document import from_data

        return read_cluster(from_data(data, "the cluster", where))

    @staticmethod
    def load(spec: str | Path) -> Cluster:
        """The cluster named by "preset", "preset:hosts", the path of a YAML file (also "file.yaml:hosts"), or "local".

        Raises:
          RhinoError: no such preset or file, or a bad field; the message gives file:line:column and the field.
        """
        from rhino.machine.catalog import load

        return load(str(spec))

    @staticmethod
    def local(devices: Any = None) -> Cluster:
        """The devices of this process group, `jax.devices()`, or some of them. Imports jax and initialises its backend.

        Args:
          devices: how many of the first ones; or a list of jax devices; or a `jax.sharding.Mesh`, for its devices.

        Raises:
          RhinoError: jax has none or not so many, they are of several kinds, or hosts have different numbers of them.
        """
        from rhino.machine.local import local_cluster

        return local_cluster(devices)

    def save(self, path: str | Path) -> None:
        """Writes the YAML file that `load` reads back to an equal cluster."""
        from rhino.schema.yaml_text import to_yaml

        try:
            Path(path).write_text(to_yaml(self.to_dict()), encoding="utf-8")
        except OSError as error:
            raise RhinoError(f"{path}: cannot write: {error.strerror}", "give a path that can be written") from None

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON of every value that can change a plan: prose and sources cannot."""
        data = self.to_dict()
        del data["sources"], data["description"]
        # 8 and 8.0 are the same value, whichever the file wrote.
        text = json.dumps(_floats(data), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _floats(data: Any) -> Any:
    """The same tree with every number but booleans as a float."""
    if isinstance(data, dict):
        return {key: _floats(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_floats(value) for value in data]
    return float(data) if isinstance(data, int) and not isinstance(data, bool) else data
