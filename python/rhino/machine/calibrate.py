"""Measures the devices of this process, and makes a cluster of what was found.

Owns which experiments there are, and the fit. Imports jax when called, never at import; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, log2
from typing import Any

import numpy as np

from rhino.errors import RhinoError, first_line
from rhino.machine.collectives import copied_bytes, ring_bytes
from rhino.machine.experiments import CPU, GPU, DeviceBench, Experiments, Sample
from rhino.machine.fit import Measured, fit_products
from rhino.machine.local import host_memory_bytes, host_of, hosts_of
from rhino.machine.model import Cluster, Device, Efficiency, Level
from rhino.machine.protocol_fit import with_hosts_joined, with_protocols
from rhino.machine.rates import KernelRates
from rhino.program.operations import COLLECTIVES
from rhino.xla import back_end

Progress = Callable[[str, int, int], None]


def calibrate(name: str, effort: Experiments | None = None, progress: Progress | None = None) -> Cluster:
    """The hosts of this job as measured: all devices busy at once, so that those which share cores share their rates.

    In a job of several processes (`rhino.distributed.initialize`) all of them must call it. They get the same cluster
    but for the memory of their own devices.

    Args:
      name: the cluster's name.
      effort: sizes; by default those of the platform.
      progress: called with (experiment, done, total) before each experiment.

    Returns:
      A cluster with one level of links within a host and, where the job has several hosts, one between them.

    Raises:
      RhinoError: jax has no devices, or the hosts have different numbers of them.
    """
    import jax

    try:
        devices: list[Any] = sorted(jax.devices(), key=lambda device: (host_of(device), device.id))
    except RuntimeError as error:
        cause = first_line(error)
        raise RhinoError(f"calibrate: jax has no devices: {cause}", "set JAX_PLATFORMS=cpu to use the CPU") from None
    hosts, per_host = hosts_of(devices)
    cpu = devices[0].platform == "cpu"
    effort = effort or (CPU if cpu else GPU)
    bench = DeviceBench(devices, effort, per_host)
    dtypes = ("f32", "f64", "bf16", "f16") if cpu else ("f32", "tf32", "f64", "bf16", "f16", "f8", "i8")
    kinds = (("all-reduce", "all-gather", "all-to-all") if cpu else ("all-reduce", "all-gather")) if bench.n > 1 else ()
    todo: list[tuple[str, Callable[[], Any]]] = [(f"matmul {d}", partial(bench.matmul, d)) for d in dtypes]
    todo += [("memory", bench.memory), ("convolution", bench.convolution)]
    if not cpu:
        todo += [("attention", bench.attention), ("attention backward", partial(bench.attention, backward=True))]
    todo += [("launch", bench.launch)]
    todo += [(f"products {d}", partial(bench.products, d)) for d in dtypes if d in effort.products_of]
    todo += [(f"{k} {n} bytes", partial(bench.collective, k, n)) for k in kinds for n in effort.collective_bytes]
    groups = {} if cpu else {n: DeviceBench(devices, effort, n) for n in range(2, per_host + 1) if per_host % n == 0}
    todo += [
        (f"{n} devices, {k} {size} bytes", partial(group.collective, k, size, True))
        for n, group in groups.items()
        for k in COLLECTIVES
        for size in effort.collective_bytes
    ]
    between = _between(devices, per_host, effort, [k for k in COLLECTIVES if k != "reduce-scatter" or not cpu])
    todo += [(label, partial(joined.collective, kind, size, not cpu)) for label, kind, joined, size in between]
    found: dict[str, Any] = {}
    for index, (label, experiment) in enumerate(todo):
        if progress:
            progress(label, index, len(todo))
        found[label] = experiment()
    if progress:
        progress("done", len(todo), len(todo))
    samples = [sample for label, sample in found.items() if label.partition(" ")[0] in kinds]
    rates = {dtype: rate for dtype in dtypes if (rate := found[f"matmul {dtype}"]) is not None}
    by = f"measured with jax {jax.__version__}"
    kernels = {name: found.get(name.replace("_", " ")) or 0.0 for name in ("attention", "attention_backward")}
    alone = found["memory"], found["convolution"], kernels, samples
    cluster = _cluster(name, jax.local_devices()[0], per_host, rates, *alone, by)
    if between:
        crossing = [(kind, joined.groups, *found[label][1:]) for label, kind, joined, _ in between]
        cluster = with_hosts_joined(cluster, hosts, crossing, by)
    shapes = {dtype: measured for dtype in rates if (measured := found.get(f"products {dtype}"))}
    # A CPU's products have no tiles that wait for each other.
    cores = 1 if cpu else int(getattr(devices[0], "core_count", 1))
    cluster = with_products(cluster, shapes, found["launch"], cores, by)
    grouped = [(n, sample) for label, sample in found.items() for n in groups if label.startswith(f"{n} devices, ")]
    return with_protocols(cluster, [(k, n, size, s) for n, (k, size, s) in grouped], by) if groups else cluster


def _between(
    devices: Sequence[Any], per_host: int, effort: Experiments, kinds: Sequence[str]
) -> list[tuple[str, str, DeviceBench, int]]:
    """Collectives between hosts, (label, kind, devices, bytes): over all devices, and over one of each host."""
    hosts = len(devices) // per_host
    joined = [DeviceBench(devices, effort)] if hosts > 1 else []
    joined += [DeviceBench(devices, effort, hosts, per_host)] if hosts > 1 and per_host > 1 else []
    return [
        (f"between hosts: {kind} {size} bytes of {each.n} devices", kind, each, size)
        for each in joined
        for kind in kinds
        for size in effort.between_bytes
    ]


def _cluster(
    name: str,
    first: Any,
    n: int,
    rates: dict[str, float],
    memory_bytes_s: float,
    convolution_flops_s: float,
    kernels_flops_s: dict[str, float],
    samples: list[Sample],
    by: str,
) -> Cluster:
    """The measured values as a cluster of one host, each with its source."""
    import jax

    cpu = first.platform == "cpu"
    limit = int((first.memory_stats() or {}).get("bytes_limit", 0))
    kind = "cpu" if cpu else str(first.device_kind).lower()
    sources = {
        "device": f"{by}, {jax.device_count()} devices busy at once",
        "levels.intra-host": f"{by}, collectives of several sizes",
        "efficiency.convolution": f"{by}, forward and both backward ones",
    }
    shares = {name: min(1.0, rate / rates.get("bf16", inf)) for name, rate in kernels_flops_s.items() if rate}
    sources.update(
        {f"efficiency.{name}": f"{by}, cuDNN, bf16, causal, 4,096 positions, heads of 128" for name in shares}
    )
    # Virtual CPU devices are threads of this process.
    medium = "memory" if cpu else "links"
    latency_s, bandwidth = fit_link(samples, n, medium) if samples else (0.0, memory_bytes_s / 2)
    if not samples:
        sources["levels.intra-host"] = "one device: a copy within its memory"
    sources["device.memory_bytes"] = "bytes_limit of jax.Device.memory_stats()" if limit else "physical memory, shared"
    target = next((known for known in ("v100", "a100", "h100", "h200", "b200") if known in kind), kind)
    return Cluster(
        name=name,
        hosts=1,
        devices_per_host=n,
        device=Device(target, target, rates, limit or host_memory_bytes() // n, memory_bytes_s),
        levels=(Level("intra-host", n, bandwidth, latency_s, medium=medium),),
        reduce_scatter=back_end(target).reduce_scatters,
        efficiency=Efficiency(
            convolution=min(1.0, convolution_flops_s / max(rates["f32"], rates.get("tf32", 0.0))), **shares
        ),
        description=f"{n} x {first.device_kind}, measured by rhino cluster calibrate",
        sources=sources,
    )


def with_products(
    cluster: Cluster, measured: dict[str, list[Measured]], launch_s: float, multiprocessors: int, by: str
) -> Cluster:
    """The cluster with what its kernels take: products fitted by type, launches as measured."""
    rates = {dtype: fit_products(samples, multiprocessors) for dtype, samples in measured.items()}
    kernels = KernelRates(multiprocessors, launch_s, rates)
    sources = {
        **cluster.sources,
        "device.kernels": f"{by}, {'multiprocessors as the driver says' if multiprocessors > 1 else 'as a whole'}",
        "device.kernels.launch_s": f"{by}, small kernels one after the other",
        "device.kernels.products": f"{by}, {len(next(iter(measured.values()), ()))} of each type",
    }
    return replace(cluster, device=replace(cluster.device, kernels=kernels), sources=sources)


def fit_link(samples: Sequence[Sample], n: int, medium: str = "links") -> tuple[float, float]:
    """(seconds of latency, bytes/s) of the model of a medium that fit the samples best in relative error.

    Links: the rings of docs/design/cost-model.md, "Collectives": all-gather `(n-1)a + V(n-1)/(nB)`, all-reduce twice
    that. Memory: `a log2(n)` and `rhino.machine.collectives.copied_bytes`. Neither term may be negative: when the best
    fit says so it is refitted with that term at zero.
    """
    hops = {"all-reduce": 2 * (n - 1), "all-gather": n - 1}
    times = np.array([seconds for _, _, seconds in samples])
    if medium == "memory":
        terms = np.array([[log2(n), copied_bytes(kind, n, nbytes)] for kind, nbytes, _ in samples])
    else:
        terms = np.array([[hops[kind], ring_bytes(kind, n, nbytes)] for kind, nbytes, _ in samples])
    scaled = terms / times[:, None]
    latency_s, per_byte = np.linalg.lstsq(scaled, np.ones(len(samples)), rcond=None)[0]
    if latency_s < 0 or per_byte <= 0:
        # The largest message alone decides the bandwidth, the smallest alone the latency.
        largest = int(np.argmax(terms[:, 1]))
        smallest = int(np.argmin(terms[:, 1]))
        per_byte = times[largest] / terms[largest, 1]
        latency_s = max(0.0, (times[smallest] - terms[smallest, 1] * per_byte) / terms[smallest, 0])
    return float(latency_s), float(1 / per_byte)
