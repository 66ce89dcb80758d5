"""Experiments on the devices of this process: matmul rates, memory bandwidth, kernels, and the links that join them.

Owns how each is timed. Knows no cluster; imports jax when called, never at import; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, inf
from time import perf_counter
from typing import Any

import numpy as np

from rhino.machine.fit import Measured
from rhino.machine.rates import DTYPES
from rhino.program.element_types import numpy_name

# (kind, bytes of the full tensor, seconds)
Sample = tuple[str, int, float]


@dataclass(frozen=True, slots=True)
class Experiments:
    """Sizes of the experiments: side of a matrix, bytes of a streamed array, bytes of collectives, seconds of each.

    `products` are (batch, rows, columns, depth) of the matrix products whose seconds go by shape, of `products_of`
    these types, in each of `ways`: "nt" says that the second operand lies transposed, as of a gradient by an input, and
    "tn" that the first one does, as by a weight.
    `between_bytes` are those of collectives between the hosts of a job.
    `fresh` is the size from which collectives are timed into memory that is touched for the first time, as a step's
    temporaries are where no pool keeps them.
    """

    matrix: int
    stream_bytes: int
    collective_bytes: tuple[int, ...]
    seconds: float
    fresh: float = inf
    between_bytes: tuple[int, ...] = (4 << 10, 256 << 10, 1 << 20, 8 << 20)
    products: tuple[tuple[int, int, int, int], ...] = ()
    products_of: tuple[str, ...] = DTYPES
    ways: tuple[str, ...] = ("nn",)

    def repeat(self, nbytes: int) -> int:
        """How often a collective of so many bytes is repeated within one program, which keeps its memory."""
        return 1 if nbytes >= self.fresh else 8


# Small collectives of threads give the latency. Their rate comes from one that no cache holds, as none holds a model.
CPU = Experiments(
    512, 32 << 20, (4 << 10, 64 << 10, 32 << 20), 0.3, fresh=1 << 20,
    products=tuple(product((1, 8), (64, 512), (64, 512), (64, 512))), products_of=("f32", "bf16"),
    ways=("nn", "nt", "tn"),
)  # fmt: skip
_SIDES = (256, 1024, 4096)
GPU = Experiments(
    8192, 1 << 30, (64 << 10, 1 << 20, 16 << 20, 256 << 20), 0.3,
    between_bytes=(64 << 10, 1 << 20, 16 << 20, 256 << 20),
    products=tuple(sizes for sizes in product((1, 4), _SIDES, _SIDES, _SIDES) if sizes[1] <= sizes[2]),
    # Others are as fast as these by their peaks.
    products_of=("tf32", "bf16", "f8"),
)  # fmt: skip


def _types(dtype: str) -> tuple[Any, str | None, Any]:
    """The element type of a product's operands, its precision, and the element type of its result."""
    import jax.numpy as jnp

    element = jnp.dtype(numpy_name({"tf32": "f32", "f8": "f8E4M3FN"}.get(dtype, dtype)))
    precision = {"f32": "highest", "tf32": "tensorfloat32"}.get(dtype)
    return element, precision, {"f8": jnp.float32, "i8": jnp.int32}.get(dtype, element)


def _slowest(seconds: float) -> float:
    """The most that any process of the job gives; all of them must call it, and meet there."""
    import jax

    if jax.process_count() == 1:
        return seconds
    from jax.experimental import multihost_utils

    return float(multihost_utils.process_allgather(np.float32(seconds)).max())


class DeviceBench:
    """Experiments that run on every device at once, each repeated inside one executable to hide dispatch.

    In a job of several processes, all of them make the same experiments together, and the slowest counts.
    """

    def __init__(self, devices: Sequence[Any], effort: Experiments, group: int | None = None, stride: int = 1) -> None:
        """`group` is how many devices, `stride` apart, each collective joins, all groups at once; by default all."""
        import jax

        self.effort, self.count, self.n = effort, len(devices), group or len(devices)
        self.groups = np.arange(self.count).reshape(-1, self.n, stride).swapaxes(1, 2).reshape(-1, self.n)
        self.mesh = jax.sharding.Mesh(np.array(devices)[self.groups], ("g", "d"))

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

        def several(count: int) -> float:
            """Seconds of each of `count` in turn, in the process that takes longest."""
            _slowest(0.0)
            start = perf_counter()
            for _ in range(count):
                run(x).block_until_ready()
            return _slowest((perf_counter() - start) / count)

        several(1)
        # Processes that share cores take turns on them: what counts is what all get done in a while, not in a turn.
        # As many in every process: else one would wait for a collective that the others do not start.
        first, parts = several(1), 3
        count = 1 if jax.process_count() == 1 else max(1, round(self.effort.seconds / parts / first))
        rounds = max(parts, ceil(self.effort.seconds / first / count))
        return min(several(count) for _ in range(rounds)) / repeat

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
        for (batch, rows, columns, depth), way in product(self.effort.products, self.effort.ways):
            seconds = self.product(dtype, batch, rows, columns, depth, way)
            if seconds is None:
                return []
            found.append((batch, rows, columns, depth, seconds))
        return found

    def product(self, dtype: str, batch: int, rows: int, columns: int, depth: int, way: str = "nn") -> float | None:
        """Seconds of [batch, rows, depth] by [batch, depth, columns]; None for a type the device does not run."""
        import jax
        import jax.numpy as jnp

        element, precision, result = _types(dtype)

        first = (depth, rows) if way[0] == "t" else (rows, depth)
        second = (columns, depth) if way[1] == "t" else (depth, columns)
        contracted = ((2 - (way[0] == "t"),), (1 + (way[1] == "t"),))

        def step(x: Any) -> Any:
            other = jax.lax.optimization_barrier(jnp.ones((batch, *second), element))
            sides = (contracted, ((0,), (0,)))
            made = jax.lax.dot_general(x, other, sides, precision=precision, preferred_element_type=result)
            # The next product waits for one element of this one, which costs next to nothing.
            last = jax.lax.optimization_barrier(made)[0, :1, :1].astype(element)
            return jax.lax.dynamic_update_slice(x, last[None], (0, 0, 0))

        try:
            with jax.enable_x64(dtype == "f64"):
                return self._seconds(step, (batch, *first), element, 8)
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
