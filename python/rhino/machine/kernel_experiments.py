"""Experiments on kernels that are no products: convolutions, fused attention, element-wise work, scatters that add.

Owns what is timed of them and, from that, their rates. Knows no cluster; imports jax when called, never at import;
prints nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rhino.machine.experiments import DeviceBench, varied
from rhino.machine.fit import MeasuredAttention
from rhino.machine.rates import ElementRates, ProductRates
from rhino.program.work import operations, scattered

# (rows, columns, depth) of a convolution or one of its gradients, as `rhino.program.products` has it
_Sizes = tuple[float, float, float]
# Seconds of one convolution with both of its gradients, and what they multiply.
MeasuredConvolution = tuple[tuple[_Sizes, ...], float]
_WIDTH = 2048
_ROW = 2048
# Rows that are added, of so many columns; to many others, and to few.
_ADDED, _COLUMNS, _MANY, _FEW = 16384, 1024, 32768, 16


def convolutions(bench: DeviceBench, dtype: str) -> list[MeasuredConvolution]:
    """Seconds of 3x3 convolutions of images, forward and by the input and the kernel, and what they multiply.

    Args:
      dtype: jax's name of the elements' type.
    """
    import jax
    import jax.numpy as jnp

    found: list[MeasuredConvolution] = []
    for images, side, channels in bench.effort.convolutions:
        dims = ("NHWC", "HWIO", "NHWC")

        def make(x: Any, kernel: Any) -> Any:
            conv = lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims)  # noqa: E731,B023
            made, back = jax.vjp(conv, x, kernel)
            return made, back(made)

        def kernel(channels: int = channels) -> tuple[Any]:
            return ((varied((3, 3, channels, channels), jnp.float32) * (9 * channels) ** -0.5).astype(dtype),)

        shape, positions, window = (images, side, side, channels), images * side**2, 9 * channels
        # In no loop: XLA's CPU back end runs a kernel's gradient a hundred times slower inside one.
        seconds = bench.kernel_seconds(make, shape, jnp.dtype(dtype), 1, kernel)
        through = (positions, channels, window)
        found.append(((through, through, (window, channels, positions)), seconds))
    return found


def convolution_share(measured: Sequence[MeasuredConvolution], rates: ProductRates, multiprocessors: int) -> float:
    """What convolutions reach of the rates of products, at most all, in the middle of what was measured."""
    shares = []
    for made, seconds in measured:
        working_s = sum(rates.working_s(1, *sizes, multiprocessors) for sizes in made)
        shares.append(working_s / max(1e-9, seconds - len(made) * rates.start_s))
    return min(1.0, float(np.median(shares)))


def attention(
    bench: DeviceBench, implementation: str = "cudnn", tokens: int = 16384
) -> dict[str, list[MeasuredAttention]]:
    """Seconds of fused attention in bf16 by shape, forward and its gradients alone; none where it does not run.

    The gradients' time is that of both, without the forward's. All have as many tokens, and heads of 2,048 in all.
    """
    import jax
    import jax.numpy as jnp

    found: dict[str, list[MeasuredAttention]] = {"forward": [], "backward": []}
    for positions, head, causal in bench.effort.attention:
        batch, heads = max(1, tokens // positions), _WIDTH // head

        def forward(x: Any, causal: bool = causal) -> Any:
            return jax.nn.dot_product_attention(x, x, x, is_causal=causal, implementation=implementation)

        def both(x: Any) -> Any:
            made, back = jax.vjp(forward, x)
            return made, back(made)

        try:
            shape = (batch, positions, heads, head)
            once_s, both_s = (bench.kernel_seconds(make, shape, jnp.bfloat16, 4) for make in (forward, both))
        except (RuntimeError, ValueError):  # jax's own errors, and not implemented, are RuntimeErrors
            return {}
        rows = float(batch * heads * positions)
        scores = rows * positions / (1 + causal)
        found["forward"].append((4 * scores * head, scores, rows, once_s))
        found["backward"].append((10 * scores * head, scores, rows, max(1e-9, both_s - once_s)))
    return found


@dataclass(frozen=True, slots=True)
class MeasuredElements:
    """Seconds of a power and of a masked softmax of bf16, each of one element; of additions to many rows and to few."""

    power_s: float
    softmax_s: float
    width: int
    to_many_s: float
    to_few_s: float


def elements(bench: DeviceBench) -> MeasuredElements:
    """Kernels that take more than their bytes."""
    import jax
    import jax.numpy as jnp

    count = bench.effort.stream_bytes // 4

    def power(x: Any) -> Any:
        return jnp.abs(x) ** 1.3

    def softmax(x: Any) -> Any:
        # As plain attention has it: alone, a softmax takes no more than its bytes.
        seen = jnp.tri(_ROW, dtype=bool)
        scores = jnp.where(seen, x.astype(jnp.float32) * 0.125, -1e30)
        return jax.nn.softmax(scores, axis=-1).astype(x.dtype)

    def added(x: Any, rows: Any, to: Any) -> Any:
        return to.at[rows].add(x)

    heads = max(1, count // _ROW**2)
    power_s = bench.kernel_seconds(power, (count // 4,), np.float32, 4) / (count // 4)
    softmax_s = bench.kernel_seconds(softmax, (heads, _ROW, _ROW), jnp.bfloat16, 4) / (heads * _ROW**2)
    width = min(_COLUMNS, max(1, bench.effort.stream_bytes // 2 // _ADDED))
    waited = []
    for targets in (_MANY, _FEW):

        def where(targets: int = targets) -> tuple[Any, Any]:
            rows = jax.random.randint(jax.random.key(1), (_ADDED,), 0, targets)
            return rows, jnp.zeros((targets, width), jnp.bfloat16)

        waited.append(bench.kernel_seconds(added, (_ADDED, width), jnp.bfloat16, 4, where))
    return MeasuredElements(power_s, softmax_s, width, *waited)


def element_rates(measured: MeasuredElements, memory_bytes_s: float) -> ElementRates:
    """What kernels take besides moving; `rhino.program.work` says what each of the experiments does."""
    additions, clashes = scattered(_ADDED * measured.width, 2, True, _FEW * measured.width)
    return ElementRates(
        measured.power_s / (operations("power") + operations("abs")),
        # Each exponential of a softmax counts four times, as its rows are summed twice. It moves each element twice.
        max(0.0, measured.softmax_s - 4 / memory_bytes_s) / 4,
        measured.to_many_s / additions,
        max(0.0, measured.to_few_s - measured.to_many_s) / clashes,
    )
