"""The cluster this process runs on, from `jax.devices()`: a preset's rates, the local number of devices and memory.

Owns the match from a device's name to a preset. Imports jax when called, never at import.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rhino.errors import RhinoError
from rhino.machine.catalog import preset_names, read_preset
from rhino.machine.model import Cluster


def local_cluster(some: Any = None) -> Cluster:
    """The hosts of this job (`host_of`), named "local:<hosts>", with all devices or with those that are given.

    Rates are a preset's; `rhino cluster calibrate` measures.

    Args:
      some: a number of devices, a list of them, a mesh, or None for all.

    Raises:
      RhinoError: jax has no backend or not so many devices, the hosts have unequal numbers of them, or the GPU has no
        preset.
    """
    import jax

    try:
        devices: list[Any] = jax.devices()
    except RuntimeError as error:
        cause = " ".join(str(error).split())
        raise RhinoError(
            f"cluster 'local': jax has no devices: {cause}", "set JAX_PLATFORMS=cpu to use the CPU"
        ) from None
    if some is None:
        return describe(devices[0], *hosts_of(devices))
    chosen = _first(devices, some) if isinstance(some, int) else _listed(some)
    # Plans have the devices of a host together.
    chosen = sorted(chosen, key=host_of)
    return replace(describe(chosen[0], *hosts_of(chosen)), device_ids=tuple(int(device.id) for device in chosen))


def _first(devices: Sequence[Any], count: int) -> list[Any]:
    if not 1 <= count <= len(devices):
        more = f"set XLA_FLAGS=--xla_force_host_platform_device_count={count} before the first use of jax"
        raise RhinoError(
            f"cluster 'local': {count} devices were asked for, and jax has {len(devices)} here",
            more if devices[0].platform == "cpu" and count > 0 else f"give a number from 1 to {len(devices)}",
        )
    return list(devices[:count])


def _listed(some: Any) -> list[Any]:
    """The devices of a list or of a mesh. RhinoError unless they are devices of one kind, each once."""
    array = getattr(some, "devices", some)  # of a mesh, an array of devices
    listed = list(getattr(array, "flat", array))
    for device in listed:
        if not (hasattr(device, "device_kind") and hasattr(device, "process_index")):
            raise RhinoError(
                f"cluster 'local': {device!r} is no device",
                "give a number, a list like jax.devices()[:4], or a Mesh",
            )
    if not listed:
        raise RhinoError("cluster 'local': the list of devices is empty", "give at least one, or None for all")
    kinds = list(dict.fromkeys(str(device.device_kind) for device in listed))
    if len(kinds) > 1:
        raise RhinoError(f"cluster 'local': the devices are of several kinds: {', '.join(kinds)}", "give those of one")
    twice = [device for device, count in Counter(listed).items() if count > 1]
    if twice:
        raise RhinoError(f"cluster 'local': {twice[0]} is given twice", "give each device once")
    return listed


def hosts_of(devices: Sequence[Any]) -> tuple[int, int]:
    """How many hosts these devices are on, and how many each has.

    Raises:
      RhinoError: not all have as many.
    """
    counts = Counter(host_of(device) for device in devices)
    if len(set(counts.values())) > 1:
        have = ", ".join(f"{count} on host {host}" for host, count in sorted(counts.items()))
        raise RhinoError(
            f"cluster 'local': the hosts have different numbers of devices: {have}",
            "start as many processes on each host, with the same number of devices",
        )
    return len(counts), len(devices) // len(counts)


def host_of(device: Any) -> int:
    """The number of a device's host. XLA's own for GPUs, where a host may have a process for each; else the process.

    XLA counts GPUs of one machine, or of one NVLink domain of several, as a partition; and, in a job, CPU devices of
    one machine, whose processes stand for hosts.
    """
    if device.platform == "cpu":
        return int(device.process_index)
    return int(getattr(device, "partition_index", device.process_index))


def describe(device: Any, hosts: int, per_host: int) -> Cluster:
    """The local cluster of a jax device's kind: pure but for the memory it asks of the device or the machine."""
    if device.platform == "cpu":
        return share_host(read_preset("cpu"), per_host, host_memory_bytes()).with_hosts(hosts)
    memory_bytes = _limit_bytes(device)
    base = _preset_of(str(device.device_kind), memory_bytes)
    sources = {**base.sources, "devices_per_host": "jax.devices()"}
    if memory_bytes:
        base = replace(base, device=replace(base.device, memory_bytes=memory_bytes))
        sources["device.memory_bytes"] = "bytes_limit of jax.Device.memory_stats()"
    return replace(_resized(base, per_host), hosts=hosts, name="local", sources=sources, description=device.device_kind)


def share_host(base: Cluster, per_host: int, memory_bytes: int) -> Cluster:
    """Virtual CPU devices share one host's cores, memory and caches: each has its share of the preset's whole host."""
    share = base.devices_per_host / per_host
    device = base.device
    shared = replace(
        device,
        peak_flops={dtype: rate * share for dtype, rate in device.peak_flops.items()},
        memory_bandwidth_bytes_s=device.memory_bandwidth_bytes_s * share,
        memory_bytes=max(1, memory_bytes // per_host),
    )
    levels = list(_resized(base, per_host).levels)
    levels[0] = replace(levels[0], bandwidth_bytes_s=levels[0].bandwidth_bytes_s * share)
    sources = {**base.sources, "devices_per_host": "jax.devices()", "device.memory_bytes": "physical memory, shared"}
    return Cluster(
        name="local",
        hosts=1,
        devices_per_host=per_host,
        device=shared,
        levels=tuple(levels),
        reduce_scatter=base.reduce_scatter,
        efficiency=base.efficiency,
        description="virtual CPU devices that share one host",
        sources=sources,
    )


def _resized(base: Cluster, per_host: int) -> Cluster:
    """The preset with another number of devices in a host; its NICs stay."""
    levels = (replace(base.levels[0], size=per_host), *base.levels[1:])
    return replace(base, devices_per_host=per_host, levels=levels)


def _preset_of(kind: str, memory_bytes: int) -> Cluster:
    """The preset whose chip is named in jax's device kind; of several, the smallest with the memory jax reports."""
    words = kind.lower().replace("-", " ").split()
    presets = [read_preset(name) for name in preset_names()]
    found = [preset for preset in presets if preset.device.kind in words]
    if not found:
        known = ", ".join(sorted({preset.device.kind for preset in presets}))
        raise RhinoError(
            f"cluster 'local': no values for device {kind!r}; known: {known}",
            "`rhino cluster calibrate -o FILE` measures them",
        )
    return min(found, key=lambda preset: _fit(preset.device.memory_bytes, memory_bytes))


def _fit(preset_bytes: int, reported_bytes: int) -> tuple[bool, int]:
    # jax reports what it may allocate, three quarters of the memory by default: enough is what counts, not nearest.
    return preset_bytes < reported_bytes, preset_bytes


def _limit_bytes(device: Any) -> int:
    """Bytes that XLA's allocator will give on the device, 0 when it does not say."""
    return int((device.memory_stats() or {}).get("bytes_limit", 0))


def host_memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
