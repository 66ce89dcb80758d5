"""Measures the devices of this process, and makes a cluster of what was found.

Owns which experiments there are, and what follows from them. Imports jax when called, never at import; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import log2
from typing import Any

import numpy as np

from rhino.errors import RhinoError, first_line
from rhino.machine.collectives import copied_bytes, ring_bytes
from rhino.machine.effort import CPU, GPU, Experiments
from rhino.machine.experiments import DeviceBench, Sample
from rhino.machine.fit import fit_attention, fit_products
from rhino.machine.host_experiments import starting
from rhino.machine.kernel_experiments import attention, convolution_share, convolutions, element_rates, elements
from rhino.machine.local import host_memory_bytes, host_of, hosts_of
from rhino.machine.model import Cluster, Device, Efficiency, Level
from rhino.machine.protocol_fit import with_hosts_joined, with_protocols
from rhino.machine.rates import CPU_TILE, TILE, KernelRates
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
    by = f"measured with jax {jax.__version__}"
    computing = _computing(DeviceBench(devices, effort, per_host), cpu)
    links = _links(devices, per_host, effort)
    between = _between(devices, per_host, effort, [k for k in COLLECTIVES if k != "reduce-scatter" or not cpu])
    joins = {label: partial(joined.collective, kind, size, not cpu) for label, kind, joined, size in between}
    found = _run({**computing, **{label: run for label, (_, run) in links.items()}, **joins}, progress)
    cluster = _cluster(name, jax.local_devices()[0], per_host, found, by)
    # A CPU's products have no tiles that wait for each other.
    cores = 1 if cpu else int(getattr(devices[0], "core_count", 1))
    cluster = with_kernels(cluster, found, cores, by)
    cluster = _with_links(cluster, [(n, found[label]) for label, (n, _) in links.items()], by)
    if not between:
        return cluster
    crossing = [(kind, joined.groups, *found[label][1:]) for label, kind, joined, _ in between]
    return with_hosts_joined(cluster, hosts, crossing, by)


def _run(todo: Mapping[str, Callable[[], Any]], progress: Progress | None) -> dict[str, Any]:
    """What each experiment finds."""
    found: dict[str, Any] = {}
    for index, (label, experiment) in enumerate(todo.items()):
        if progress:
            progress(label, index, len(todo))
        found[label] = experiment()
    if progress:
        progress("done", len(todo), len(todo))
    return found


def _computing(bench: DeviceBench, cpu: bool) -> dict[str, Callable[[], Any]]:
    """Experiments on what a device computes; those of one type are "WHAT TYPE"."""
    dtypes = ("f32", "f64", "bf16", "f16") if cpu else ("f32", "tf32", "f64", "bf16", "f16", "f8", "i8")
    todo: dict[str, Callable[[], Any]] = {f"matmul {d}": partial(bench.matmul, d) for d in dtypes}
    todo |= {"memory": bench.memory, "launch": bench.launch}
    todo |= {f"products {d}": partial(bench.products, d) for d in dtypes if d in bench.effort.products_of}
    todo["convolution"] = partial(convolutions, bench, "float32" if cpu else "bfloat16")
    if not cpu:
        todo |= {"host": bench.host, "attention": partial(attention, bench), "elements": partial(elements, bench)}
        todo["starting"] = starting
    if bench.effort.lasting_s:
        # Last: what comes after would find the device as slow.
        todo["lasting"] = bench.lasting
    return todo


def _links(devices: Sequence[Any], per_host: int, effort: Experiments) -> dict[str, tuple[int, Callable[[], Sample]]]:
    """Experiments on a host's links: the size of their groups, 0 for all of them, and what to run."""
    cpu, bench = devices[0].platform == "cpu", DeviceBench(devices, effort, per_host)
    kinds = (("all-reduce", "all-gather", "all-to-all") if cpu else ("all-reduce", "all-gather")) if bench.n > 1 else ()
    todo: dict[str, tuple[int, Callable[[], Sample]]] = {
        f"{kind} {size} bytes": (0, partial(bench.collective, kind, size))
        for kind in kinds
        for size in effort.collective_bytes
    }
    groups = {} if cpu else {n: DeviceBench(devices, effort, n) for n in range(2, per_host + 1) if per_host % n == 0}
    todo |= {
        f"{n} devices, {kind} {size} bytes": (n, partial(group.collective, kind, size, True))
        for n, group in groups.items()
        for kind in COLLECTIVES
        for size in effort.collective_bytes
    }
    return todo


def _with_links(cluster: Cluster, found: Sequence[tuple[int, Sample]], by: str) -> Cluster:
    """The cluster with its host's links and what collectives take of them, as `_links` found it."""
    if samples := [sample for n, sample in found if not n]:
        level = cluster.levels[0]
        latency_s, bandwidth = fit_link(samples, level.size, level.medium)
        level = replace(level, bandwidth_bytes_s=bandwidth, latency_s=latency_s)
        sources = {**cluster.sources, "levels.intra-host": f"{by}, collectives of several sizes"}
        cluster = replace(cluster, levels=(level,), sources=sources)
    grouped = [(kind, n, size, seconds) for n, (kind, size, seconds) in found if n]
    return with_protocols(cluster, grouped, by) if grouped else cluster


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


def _cluster(name: str, first: Any, n: int, found: Mapping[str, Any], by: str) -> Cluster:
    """One host of what was measured of a device alone, each value with its source."""
    import jax

    cpu = first.platform == "cpu"
    limit = int((first.memory_stats() or {}).get("bytes_limit", 0))
    kind = "cpu" if cpu else str(first.device_kind).lower()
    rates = {label.partition(" ")[2]: rate for label, rate in found.items() if label.startswith("matmul ") and rate}
    sources = {
        "device": f"{by}, {jax.device_count()} devices busy at once",
        "device.memory_bytes": "bytes_limit of jax.Device.memory_stats()" if limit else "physical memory, shared",
        "levels.intra-host": "one device: a copy within its memory",
    }
    # Virtual CPU devices are threads of this process.
    level = Level("intra-host", n, found["memory"] / 2, 0.0, medium="memory" if cpu else "links")
    target = next((known for known in ("v100", "a100", "h100", "h200", "b200") if known in kind), kind)
    return Cluster(
        name=name,
        hosts=1,
        devices_per_host=n,
        device=Device(
            target,
            target,
            rates,
            limit or host_memory_bytes() // n,
            found["memory"],
            host_bandwidth_bytes_s=found.get("host"),
        ),
        levels=(level,),
        reduce_scatter=back_end(target).reduce_scatters,
        description=f"{n} x {first.device_kind}, measured by rhino cluster calibrate",
        sources=sources,
    )


def with_kernels(cluster: Cluster, found: Mapping[str, Any], multiprocessors: int, by: str) -> Cluster:
    """The cluster with what its kernels take: products and attention fitted, all else as measured.

    Args:
      found: what experiments found: "products TYPE", "launch", "convolution", and where they ran "attention",
        "elements", "starting" and "lasting".
    """
    shapes = {label.partition(" ")[2]: it for label, it in found.items() if label.startswith("products ") and it}
    # The profiler tells kernels without what is between them.
    between_s = found["launch"] if multiprocessors > 1 else 0.0
    timed = {dtype: [(*sizes, s + between_s) for *sizes, s in measured] for dtype, measured in shapes.items()}
    tile = CPU_TILE if cluster.device.xla_target == "cpu" else TILE
    products = {dtype: fit_products(measured, multiprocessors, tile) for dtype, measured in timed.items()}
    attentions = {way: fit_attention(samples) for way, samples in (found.get("attention") or {}).items()}
    measured = found.get("elements")
    element = element_rates(measured, cluster.device.memory_bandwidth_bytes_s) if measured else None
    kernels = KernelRates(multiprocessors, found["launch"], products, attentions, element, found.get("starting"))
    sources = {
        **cluster.sources,
        "device.kernels": f"{by}, {'multiprocessors as the driver says' if multiprocessors > 1 else 'as a whole'}",
        "device.kernels.launch_s": f"{by}, small kernels one after the other",
        "device.kernels.products": f"{by}, {len(next(iter(shapes.values()), ()))} of each type",
    }
    if attentions:
        count = len(found["attention"]["forward"])
        sources["device.kernels.attention"] = f"{by}, cuDNN, bf16, {count} shapes"
    if element is not None:
        sources["device.kernels.elements"] = f"{by}: powers, softmaxes, scatters of bf16"
    if kernels.host is not None:
        sources["device.kernels.host"] = f"{by}: arrays, and kernels and convolutions too small to be waited for"
    efficiency = Efficiency()
    if lasting := found.get("lasting"):
        efficiency = replace(efficiency, matmul=min(1.0, lasting))
        sources["efficiency.matmul"] = f"{by}: of their most, what large products of bf16 reach in a step that lasts"
    dtype = "f32" if cluster.device.xla_target == "cpu" else "bf16"
    if dtype in products:
        # A thousandth: products of which all time is their start tell nothing.
        convolved = [(made, seconds + between_s * len(made)) for made, seconds in found["convolution"]]
        share = max(1e-3, convolution_share(convolved, products[dtype], multiprocessors))
        # What is slower than products takes less power, which then limits it less.
        efficiency = replace(efficiency, convolution=min(share, efficiency.matmul))
        sources["efficiency.convolution"] = f"{by}: of products as large, forward and both backward ones"
    return replace(cluster, device=replace(cluster.device, kernels=kernels), efficiency=efficiency, sources=sources)


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
