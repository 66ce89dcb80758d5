"""Measures the devices of this process: matmul rates, memory bandwidth, and the links that join the devices.

Owns the experiments and the fit. Imports jax when called, never at import; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf, log2
from time import perf_counter
from typing import Any

import numpy as np

from rhino.errors import RhinoError, first_line
from rhino.machine.collectives import copied_bytes, ring_bytes
from rhino.machine.fit import Measured, fit_products
from rhino.machine.local import host_memory_bytes
from rhino.machine.model import Cluster, Device, Efficiency, Level
from rhino.machine.protocol_fit import with_protocols
from rhino.machine.rates import KernelRates
from rhino.program.element_types import numpy_name
from rhino.program.operations import COLLECTIVES
from rhino.xla import back_end

# (kind, bytes of the full tensor, seconds)
Sample = tuple[str, int, float]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Experiments:
    """Sizes of the experiments: side of a matrix, bytes of a streamed array, bytes of collectives, seconds of each.

    `products` are (batch, rows, columns, depth) of the matrix products whose seconds go by shape, on GPUs.
    `fresh` is the size from which collectives are timed into memory that is touched for the first time, as a step's
    temporaries are where no pool keeps them.
    """

    matrix: int
    stream_bytes: int
    collective_bytes: tuple[int, ...]
    seconds: float
    fresh: float = inf
    products: tuple[tuple[int, int, int, int], ...] = ()

    def repeat(self, nbytes: int) -> int:
        """How often a collective of so many bytes is repeated within one program, which keeps its memory."""
        return 1 if nbytes >= self.fresh else 8


# Small collectives of threads give the latency. Their rate comes from one that no cache holds, as none holds a model.
CPU = Experiments(512, 32 << 20, (4 << 10, 64 << 10, 32 << 20), 0.3, fresh=1 << 20)
_SIDES = (256, 1024, 4096)
GPU = Experiments(
    8192, 1 << 30, (64 << 10, 1 << 20, 16 << 20, 256 << 20), 0.3,
    products=tuple(sizes for sizes in product((1, 4), _SIDES, _SIDES, _SIDES) if sizes[1] <= sizes[2]),
)  # fmt: skip


def calibrate(name: str, effort: Experiments | None = None, progress: Progress | None = None) -> Cluster:
    """One host as measured: all its devices busy at once, so that devices which share cores share their rates.

    Args:
      name: the cluster's name.
      effort: sizes; by default those of the platform.
      progress: called with (experiment, done, total) before each experiment.

    Returns:
      A cluster of one host with one level of links. Links between hosts are not measured: add them to the file.

    Raises:
      RhinoError: jax has no devices.
    """
    import jax

    try:
        devices: list[Any] = jax.local_devices()
    except RuntimeError as error:
        cause = first_line(error)
        raise RhinoError(f"calibrate: jax has no devices: {cause}", "set JAX_PLATFORMS=cpu to use the CPU") from None
    cpu = devices[0].platform == "cpu"
    effort = effort or (CPU if cpu else GPU)
    bench = _Bench(devices, effort)
    dtypes = ("f32", "f64", "bf16", "f16") if cpu else ("f32", "tf32", "f64", "bf16", "f16", "f8", "i8")
    kinds = (("all-reduce", "all-gather", "all-to-all") if cpu else ("all-reduce", "all-gather")) if bench.n > 1 else ()
    todo: list[tuple[str, Callable[[], Any]]] = [(f"matmul {d}", partial(bench.matmul, d)) for d in dtypes]
    todo += [("memory", bench.memory), ("convolution", bench.convolution)]
    if not cpu:
        todo += [("attention", bench.attention), ("attention backward", partial(bench.attention, backward=True))]
        todo += [("launch", bench.launch)]
        todo += [(f"products {d}", partial(bench.products, d)) for d in dtypes]
    todo += [(f"{k} {n} bytes", partial(bench.collective, k, n)) for k in kinds for n in effort.collective_bytes]
    groups = {} if cpu else {n: _Bench(devices, effort, n) for n in range(2, bench.n + 1) if bench.n % n == 0}
    todo += [
        (f"{n} devices, {k} {size} bytes", partial(group.collective, k, size, True))
        for n, group in groups.items()
        for k in COLLECTIVES
        for size in effort.collective_bytes
    ]
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
    cluster = _cluster(name, devices, rates, found["memory"], found["convolution"], kernels, samples, by)
    if cpu:
        return cluster
    shapes = {dtype: measured for dtype in rates if (measured := found[f"products {dtype}"])}
    cluster = with_products(cluster, shapes, found["launch"], int(getattr(devices[0], "core_count", 1)), by)
    grouped = [(n, sample) for label, sample in found.items() for n in groups if label.startswith(f"{n} devices, ")]
    return with_protocols(cluster, [(k, n, size, s) for n, (k, size, s) in grouped], by) if groups else cluster


def _cluster(
    name: str,
    devices: Sequence[Any],
    rates: dict[str, float],
    memory_bytes_s: float,
    convolution_flops_s: float,
    kernels_flops_s: dict[str, float],
    samples: list[Sample],
    by: str,
) -> Cluster:
    """The measured values as a cluster, each with its source."""
    first, n = devices[0], len(devices)
    cpu = first.platform == "cpu"
    limit = int((first.memory_stats() or {}).get("bytes_limit", 0))
    kind = "cpu" if cpu else str(first.device_kind).lower()
    sources = {
        "device": f"{by}, {n} devices busy at once",
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
        "device.kernels": f"{by}, multiprocessors as the driver says",
        "device.kernels.launch_s": f"{by}, small kernels one after the other",
        "device.kernels.products": f"{by}, {len(next(iter(measured.values()), ()))} shapes of each type",
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


def _types(dtype: str) -> tuple[Any, str | None, Any]:
    """The element type of a product's operands, its precision, and the element type of its result."""
    import jax.numpy as jnp

    element = jnp.dtype(numpy_name({"tf32": "f32", "f8": "f8E4M3FN"}.get(dtype, dtype)))
    precision = {"f32": "highest", "tf32": "tensorfloat32"}.get(dtype)
    return element, precision, {"f8": jnp.float32, "i8": jnp.int32}.get(dtype, element)


class _Bench:
    """Experiments that run on every device at once, each repeated inside one executable to hide dispatch."""

    def __init__(self, devices: Sequence[Any], effort: Experiments, group: int | None = None) -> None:
        """`group` is how many devices each collective joins, all groups at once; by default all."""
        import jax

        self.effort, self.count, self.n = effort, len(devices), group or len(devices)
        self.mesh = jax.sharding.Mesh(np.array(devices).reshape(-1, self.n), ("g", "d"))

    def _seconds(self, step: Callable[..., Any], shape: tuple[int, ...], dtype: Any, repeat: int) -> float:
        """Least seconds of one application of `step` to a [devices, *shape] array, one row per device.

        The least, not the median: on a machine that others use too, it is what changes least from one run to the next.
        """
        import jax
        import jax.numpy as jnp

        rows = jax.sharding.PartitionSpec(("g", "d"))

        def body(x: Any) -> Any:
            once = step(x[0]) if repeat == 1 else jax.lax.fori_loop(0, repeat, lambda _, carry: step(carry), x[0])
            return once[None]

        run = jax.jit(jax.shard_map(body, mesh=self.mesh, in_specs=rows, out_specs=rows, check_vma=False))
        sharding = jax.sharding.NamedSharding(self.mesh, rows)
        x = jax.jit(lambda: jnp.ones((self.count, *shape), dtype), out_shardings=sharding)()
        run(x).block_until_ready()
        times: list[float] = []
        start = perf_counter()
        while len(times) < 3 or perf_counter() - start < self.effort.seconds:
            before = perf_counter()
            run(x).block_until_ready()
            times.append(perf_counter() - before)
        return min(times) / repeat

    def matmul(self, dtype: str) -> float | None:
        """FLOP/s of one device in square matmuls, or None for a type the device does not run."""
        import jax
        import jax.numpy as jnp

        element, precision, result = _types(dtype)

        def step(x: Any) -> Any:
            # The product feeds the next one, so none can be dropped or hoisted.
            return jnp.matmul(x, x, precision=precision, preferred_element_type=result).astype(element)

        side = self.effort.matrix
        try:
            with jax.enable_x64(dtype == "f64"):
                return 2.0 * side**3 / self._seconds(step, (side, side), element, 4)
        except (jax.errors.JaxRuntimeError, TypeError, ValueError):
            return None

    def products(self, dtype: str) -> list[Measured]:
        """Seconds of one device by shape of product; none for a type the device does not run."""
        found: list[Measured] = []
        for batch, rows, columns, depth in self.effort.products:
            seconds = self.product(dtype, batch, rows, columns, depth)
            if seconds is None:
                return []
            found.append((batch, rows, columns, depth, seconds))
        return found

    def product(self, dtype: str, batch: int, rows: int, columns: int, depth: int) -> float | None:
        """Seconds of [batch, rows, depth] by [batch, depth, columns]; None for a type the device does not run."""
        import jax
        import jax.numpy as jnp

        element, precision, result = _types(dtype)

        def step(x: Any) -> Any:
            other = jnp.ones((batch, depth, columns), element)
            made = jnp.matmul(
                x, jax.lax.optimization_barrier(other), precision=precision, preferred_element_type=result
            )
            # The next product waits for one element of this one, which costs next to nothing.
            last = jax.lax.optimization_barrier(made)[0, :1, :1].astype(element)
            return jax.lax.dynamic_update_slice(x, last[None], (0, 0, 0))

        try:
            with jax.enable_x64(dtype == "f64"):
                return self._seconds(step, (batch, rows, depth), element, 8)
        except (jax.errors.JaxRuntimeError, TypeError, ValueError):
            return None

    def launch(self) -> float:
        """Seconds of a kernel that does next to nothing, one of many."""
        import jax

        count = 64

        def step(x: Any) -> Any:
            for _ in range(count):
                x = jax.lax.optimization_barrier(x + 1)
            return x

        return self._seconds(step, (1024,), np.float32, 1) / count

    def memory(self) -> float:
        """Bytes/s, reads plus writes, of one device that updates a large array in place."""
        count = self.effort.stream_bytes // 4
        return 2.0 * self.effort.stream_bytes / self._seconds(lambda x: x + 1, (count,), np.float32, 4)

    def convolution(self) -> float:
        """FLOP/s of one device in 3x3 convolutions of f32 images: forward, and by its input and its kernel."""
        import jax
        import jax.numpy as jnp

        images, side, channels = 8, 32, max(8, self.effort.matrix // 8)
        flops = 2.0 * images * side**2 * 9 * channels**2
        dims = ("NHWC", "HWIO", "NHWC")

        def step(x: Any) -> Any:
            kernel = jnp.full((3, 3, channels, channels), 1e-3, jnp.float32)
            conv = lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims)  # noqa: E731
            y, back = jax.vjp(conv, x, kernel)
            by_input, by_kernel = back(y)
            return by_input * by_kernel[0, 0, 0, 0]

        # Repeated in no loop: XLA's CPU backend runs a kernel's gradient a hundred times slower inside one.
        return 3 * flops / self._seconds(step, (images, side, side, channels), np.float32, 1)

    def attention(self, backward: bool = False, implementation: str = "cudnn", positions: int = 4096) -> float | None:
        """FLOP/s of one device in a causal fused attention of bf16 heads of 128, or in its gradients alone.

        None where it does not run. The gradients' time is that of both, without the forward's.
        """
        import jax
        import jax.numpy as jnp

        heads, head = 16, 128
        # Scores and their product with values; of a causal mask, half.
        flops = 4.0 * heads * positions**2 * head / 2

        def forward(x: Any) -> Any:
            return jax.nn.dot_product_attention(x, x, x, is_causal=True, implementation=implementation)

        def both(x: Any) -> Any:
            return jax.grad(lambda y: forward(y).astype(jnp.float32).sum())(x).astype(x.dtype)

        try:
            shape = (1, positions, heads, head)
            forward_s = self._seconds(forward, shape, jnp.bfloat16, 4)
            if not backward:
                return flops / forward_s
            return 2.5 * flops / max(1e-9, self._seconds(both, shape, jnp.bfloat16, 4) - forward_s)
        except (RuntimeError, ValueError):  # jax's own errors, and not implemented, are RuntimeErrors
            return None

    def collective(self, kind: str, nbytes: int, adds: bool = False) -> Sample:
        """Seconds of one collective whose full tensor has about `nbytes` bytes.

        Args:
          adds: whether an all-reduce is a sum, as in training, which switches may do; else it is a maximum.
        """
        import jax

        n, repeat = self.n, self.effort.repeat(nbytes)
        shard = max(1, nbytes // 4 // n)

        def gather(x: Any) -> Any:
            whole = jax.lax.all_gather(x, "d", tiled=True)
            return jax.lax.dynamic_slice(whole, (jax.lax.axis_index("d") * shard,), (shard,))

        def exchange(x: Any) -> Any:
            return jax.lax.all_to_all(x.reshape(n, -1), "d", 0, 0, tiled=True).reshape(-1)

        def scatter(x: Any) -> Any:
            return jax.lax.dynamic_update_slice(x, jax.lax.psum_scatter(x, "d", tiled=True), (0,))

        if kind == "all-to-all":
            shard = -(-shard // n) * n
        # Neither a maximum nor a sum of ones, eight times over, needs a rescaling pass that would be timed too.
        step: Callable[[Any], Any] = {
            "all-gather": gather,
            "all-to-all": exchange,
            "reduce-scatter": scatter,
            "collective-permute": lambda x: jax.lax.ppermute(x, "d", [(i, (i + 1) % n) for i in range(n)]),
            "all-reduce": lambda x: jax.lax.psum(x, "d") if adds else jax.lax.pmax(x, "d"),
        }[kind]
        count = shard if kind in ("all-gather", "all-to-all") else shard * n
        return kind, shard * n * 4, self._seconds(step, (count,), np.float32, repeat)
