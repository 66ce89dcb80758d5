"""Experiments on the devices of this process: matmul rates, memory bandwidth, products, and the links that join them.

Owns how each is timed; other kernels are `rhino.machine.kernel_experiments`'. Knows no cluster; imports jax when
called, never at import; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from rhino.machine.effort import Experiments
from rhino.machine.fit import Measured
from rhino.machine.profiled import profiled
from rhino.program.element_types import numpy_name

# (kind, bytes of the full tensor, seconds)
Sample = tuple[str, int, float]
_PROFILED = 3
# Of the time of a step that lasts, what large products take: power limits the clock by that share.
_OF_PRODUCTS = 2 / 3
Others = Callable[[], tuple[Any, ...]]


def _types(dtype: str) -> tuple[Any, str | None, Any]:
    """The element type of a product's operands, its precision, and the element type of its result."""
    import jax.numpy as jnp

    element = jnp.dtype(numpy_name({"tf32": "f32", "f8": "f8E4M3FN"}.get(dtype, dtype)))
    precision = {"f32": "highest", "tf32": "tensorfloat32"}.get(dtype)
    return element, precision, {"f8": jnp.float32, "i8": jnp.int32}.get(dtype, element)


def _slowest(seconds: float) -> float:
    """The most that any process of the job gives; all of them must call it, and meet there."""

    if _alone():
        return seconds
    from jax.experimental import multihost_utils

    return float(multihost_utils.process_allgather(np.float32(seconds)).max())


def _alone() -> bool:
    """Whether this process is all of its job."""
    import jax

    return bool(jax.process_count() == 1)


def varied(shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers about 1, each another: all alike, or zeros, they take a GPU less power, and so less time."""
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    if jnp.issubdtype(dtype, jnp.integer):
        return jax.random.randint(key, shape, -100, 100, jnp.int32).astype(dtype)
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


@cache
def _varied(shape: tuple[int, ...], dtype: Any) -> Others:
    """What makes one such array; the same object for the same array, which is compiled once then."""
    return lambda: (varied(shape, dtype),)


def _square(side: int, dtype: Any) -> Any:
    """A matrix whose product with another leaves that one's numbers about as large."""
    import jax.numpy as jnp

    scale = 1 if jnp.issubdtype(dtype, jnp.integer) else side**-0.5
    return (varied((side, side), jnp.float32) * scale).astype(dtype)


def after(x: Any, *made: Any) -> Any:
    """`x` once all of these are made: its first elements are theirs, which costs next to nothing."""
    import jax

    for at, one in enumerate(jax.lax.optimization_barrier(made)):
        x = x.at[(*(0 for _ in x.shape[1:]), at)].set(one[(0,) * one.ndim].astype(x.dtype))
    return x


class DeviceBench:
    """Experiments that run on every device at once.

    In a job of several processes, all of them make the same experiments together, and the slowest counts.
    """

    def __init__(self, devices: Sequence[Any], effort: Experiments, group: int | None = None, stride: int = 1) -> None:
        """`group` is how many devices, `stride` apart, each collective joins, all groups at once; by default all."""
        import jax

        self.effort, self.count, self.n = effort, len(devices), group or len(devices)
        self.groups = np.arange(self.count).reshape(-1, self.n, stride).swapaxes(1, 2).reshape(-1, self.n)
        self.mesh = jax.sharding.Mesh(np.array(devices)[self.groups], ("g", "d"))
        self.gpu = devices[0].platform == "gpu"

    def kernel_seconds(
        self,
        make: Callable[..., Any],
        shape: tuple[int, ...],
        dtype: Any,
        repeat: int,
        others: Others = tuple,
        feeds: bool = False,
    ) -> float:
        """Seconds of the kernels that make something of a [devices, *shape] array, one row per device.

        On GPUs the profiler tells them: a loop takes as long as a small kernel does, and copies what it carries. Where
        there is no profiler a clock does.

        Args:
          make: gives one array of a row of the first and of what `others` makes, or several of them.
          repeat: how often the program has it, where a clock tells.
          others: makes what `make` has besides, the same on every device.
          feeds: whether what is made is as what it is made of, and may take its place.
        """
        import jax

        if self.gpu:
            run = self._run(make, shape, dtype, others)
            jax.block_until_ready(run())
            found = profiled(run, _PROFILED)
            if seconds := _slowest(max((sum(s for s, _ in kernels.values()) for kernels in found), default=0.0)):
                return seconds
        step = make if feeds else lambda x, *rest: after(x, *jax.tree.leaves(make(x, *rest)))
        return self.seconds(step, shape, dtype, repeat, others)

    def seconds(
        self, step: Callable[..., Any], shape: tuple[int, ...], dtype: Any, repeat: int, others: Others = tuple
    ) -> float:
        """Seconds, by a clock, of one of many applications of `step`, each to what the one before has made.

        On GPUs the least: on a machine that others use too, it is what changes least from one run to the next. CPU
        devices share cores, and threads wait for each other in steps as they do here: there it is the median.

        Args:
          step: gives what it has, a row of a [devices, *shape] array, anew.
          repeat: applications in one program, so that dispatch is shared by them.
          others: as of `kernel_seconds`.
        """
        several = self._clocked(step, shape, dtype, repeat, others)
        several(1)
        # Processes that share cores take turns on them: what counts is what all get done in a while, not in a turn.
        # As many in every process: else one would wait for a collective that the others do not start.
        first, parts = several(1), 5
        count = 1 if _alone() else max(1, round(self.effort.seconds / parts / first))
        rounds = max(parts, ceil(self.effort.seconds / first / count))
        found = [several(count) for _ in range(rounds)]
        return (min(found) if self.gpu else median(found)) / repeat

    def _clocked(
        self, step: Callable[..., Any], shape: tuple[int, ...], dtype: Any, repeat: int, others: Others
    ) -> Callable[[int], float]:
        """What gives the seconds of each of so many runs in turn, in the process that takes longest."""
        import jax

        def several_steps(x: Any, *rest: Any) -> Any:
            if not self.gpu and repeat > 1:
                return jax.lax.fori_loop(0, repeat, lambda _, carry: step(carry, *rest), x)
            for _ in range(repeat):
                x = step(x, *rest)
            return x

        run = self._run(several_steps, shape, dtype, others)

        def several(count: int) -> float:
            _slowest(0.0)
            start = perf_counter()
            for _ in range(count):
                run().block_until_ready()
            return _slowest((perf_counter() - start) / count)

        return several

    def _run(self, make: Callable[..., Any], shape: tuple[int, ...], dtype: Any, others: Others) -> Callable[[], Any]:
        """What starts `make` on every device."""
        import jax

        def body(x: Any, *rest: Any) -> Any:
            return jax.tree.map(lambda made: made[None], make(x[0], *rest))

        rows, whole = jax.sharding.PartitionSpec(("g", "d")), jax.sharding.PartitionSpec()
        split, same = (jax.sharding.NamedSharding(self.mesh, spec) for spec in (rows, whole))
        (x,) = jax.jit(_varied((self.count, *shape), np.dtype(dtype)), out_shardings=split)()
        rest = jax.jit(others, out_shardings=same)()
        specs = (rows, *(whole for _ in rest))
        run = jax.jit(jax.shard_map(body, mesh=self.mesh, in_specs=specs, out_specs=rows, check_vma=False))
        return lambda: run(x, *rest)

    def matmul(self, dtype: str) -> float | None:
        """FLOP/s of one device in square matmuls, the most it reaches, or None for a type the device does not run."""
        import jax
        import jax.numpy as jnp

        element, precision, result = _types(dtype)
        side = self.effort.matrix

        def step(x: Any, other: Any) -> Any:
            # The product feeds the next one, so none can be dropped or hoisted; and stays as large.
            return jnp.matmul(x, other, precision=precision, preferred_element_type=result).astype(element)

        try:
            with jax.enable_x64(dtype == "f64"):
                others = lambda: (_square(side, element),)  # noqa: E731
                return 2.0 * side**3 / self.kernel_seconds(step, (side, side), element, 4, others, feeds=True)
        except (jax.errors.JaxRuntimeError, TypeError, ValueError):
            return None

    def lasting(self) -> float | None:
        """What bf16 matmuls of a step that lasts reach of their most, other work between them that moves memory.

        Products take more power than a GPU may have on average, so their clock falls the more, the larger a share of
        the step they are: here two thirds. What moves memory takes as long at any clock.

        Returns:
          A share of at most 1; None for a device that runs no bf16.
        """
        import jax
        import jax.numpy as jnp

        most, side, nbytes, products = self.matmul("bf16"), self.effort.matrix, self.effort.stream_bytes, 4
        if most is None:
            return None
        pass_s, product_s = 2.0 * nbytes / self.memory(), 2.0 * side**3 / most
        passes = max(1, round(products * product_s * (1 / _OF_PRODUCTS - 1) / pass_s))

        def step(x: Any, other: Any, array: Any) -> Any:
            for _ in range(products):
                x = jnp.matmul(x, other)
            for _ in range(passes):
                array = jax.lax.optimization_barrier(array + 1)
            return after(x, array)

        def others() -> tuple[Any, Any]:
            return _square(side, jnp.bfloat16), jnp.zeros(nbytes // 4, np.float32)

        run = self._clocked(step, (side, side), jnp.bfloat16, 1, others)
        run(1)
        runs = max(2, ceil(self.effort.lasting_s / run(1)))
        run(runs - runs // 4)
        # Where other work slows this host down, memory alone may have taken longer than both together.
        left_s = run(max(1, runs // 4)) - passes * pass_s
        return min(1.0, products * product_s / left_s) if left_s > 0 else 1.0

    def products(self, dtype: str) -> list[Measured]:
        """Seconds of one device by shape of product; none for a type the device does not run."""
        found: list[Measured] = []
        for (batch, rows, columns, depth), way in product(self.effort.products, self.effort.ways):
            seconds = self.product(dtype, batch, rows, columns, depth, way)
            if seconds is None:
                return []
            found.append((batch, rows, columns, depth, seconds))
        return found

    def product(self, dtype: str, batch: int, rows: int, columns: int, depth: int, way: str = "nn") -> float | None:
        """Seconds of [batch, rows, depth] by [batch, depth, columns]; None for a type the device does not run."""
        import jax

        element, precision, result = _types(dtype)
        first = (depth, rows) if way[0] == "t" else (rows, depth)
        second = (columns, depth) if way[1] == "t" else (depth, columns)
        contracted = ((2 - (way[0] == "t"),), (1 + (way[1] == "t"),))
        repeat = self.effort.repeat_product(2 * batch * rows * columns * depth)

        def make(x: Any, other: Any) -> Any:
            sides = (contracted, ((0,), (0,)))
            return jax.lax.dot_general(x, other, sides, precision=precision, preferred_element_type=result)

        try:
            with jax.enable_x64(dtype == "f64"):
                others = _varied((batch, *second), element)
                return self.kernel_seconds(make, (batch, *first), element, repeat, others)
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

        return self.seconds(step, (1024,), np.float32, 1) / count

    def memory(self) -> float:
        """Bytes/s, reads plus writes, of one device that updates a large array, on CPUs in place."""
        count = self.effort.stream_bytes // 4
        seconds = self.kernel_seconds(lambda x: x + 1, (count,), np.float32, 4, feeds=True)
        return 2.0 * self.effort.stream_bytes / seconds

    def host(self) -> float:
        """Bytes/s of one device between its memory and pinned memory of its host, all at once, the slower way."""
        import jax

        rows = jax.sharding.PartitionSpec(("g", "d"))
        here, there = (
            jax.sharding.NamedSharding(self.mesh, rows, memory_kind=kind) for kind in ("device", "pinned_host")
        )
        shape = (self.count, self.effort.stream_bytes // 4)
        on_device = jax.jit(lambda: varied(shape, np.float32), out_shardings=here)()
        on_host = jax.device_put(on_device, there)

        def seconds(array: Any, to: Any) -> float:
            _slowest(0.0)
            start = perf_counter()
            jax.device_put(array, to).block_until_ready()
            return _slowest(perf_counter() - start)

        ways = ((on_device, there), (on_host, here))
        return self.effort.stream_bytes / max(min(seconds(*way) for _ in range(5)) for way in ways)

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
        return kind, shard * n * 4, self.seconds(step, (count,), np.float32, repeat)
