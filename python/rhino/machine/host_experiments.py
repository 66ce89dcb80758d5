"""Experiments on what the host takes to start a step's work on a device.

Owns what is timed of it. Each is the slope between a short program and a long one, whose kernels are so small that the
device waits for the host. Imports jax when called, never at import; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from rhino.machine.rates import HostRates

# XLA starts every kernel alone.
ALONE = {"xla_gpu_enable_command_buffer": ""}
_RUNS, _REPEATS = 20, 5
_IMAGES, _CHANNELS = (2, 14, 14, 64), 64

# What takes so many of something, and its arguments.
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def starting(kernels: Sequence[int] = (60, 300), arrays: Sequence[int] = (100, 1000)) -> HostRates:
    """What the host takes for the first device of this process.

    Args:
      kernels, arrays: how many the short program and the long one have.
    """
    few, many = kernels[0] // 6, kernels[1] // 6
    kernel_s = _slope(_chain, kernels, ALONE)
    apart_s = _slope(_convolutions, (few, many))
    round_s = _slope(_rounds, (few, many))
    array_s = _slope(_handed, arrays, donated=True)
    return HostRates(*(float(f"{max(0.0, s):.3g}") for s in (array_s, kernel_s, apart_s, round_s - apart_s)))


def _slope(
    make: Callable[[int], Program],
    counts: Sequence[int],
    options: dict[str, str] | None = None,
    donated: bool = False,
) -> float:
    """Seconds of one more."""
    few_s, many_s = (_seconds(*make(count), options, donated) for count in counts)
    return (many_s - few_s) / (counts[1] - counts[0])


def _seconds(
    program: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, str] | None,
    donated: bool,
) -> float:
    """Least seconds of one of some executions, each started before those before it end."""
    import jax

    given = jax.device_put(arguments, jax.local_devices()[0])
    donate = tuple(range(len(given))) if donated else ()
    compiled = jax.jit(program, donate_argnums=donate).lower(*given).compile(compiler_options=options)

    def run(times: int) -> float:
        nonlocal given
        start = perf_counter()
        for _ in range(times):
            made = compiled(*given)
            given = made if donated else given
        jax.block_until_ready(made)
        return perf_counter() - start

    run(3)
    return min(run(_RUNS) for _ in range(_REPEATS)) / _RUNS


def _chain(count: int) -> Program:
    """Kernels, each of what the one before it summed."""
    import jax.numpy as jnp

    def program(x: Any) -> Any:
        total = jnp.float32(1)
        for _ in range(count):
            x = x * total
            total = x.sum() * 1e-9 + 1
        return x

    return program, (jnp.ones((8, 128)),)


def _convolution(x: Any, kernel: Any) -> Any:
    from jax import lax

    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _convolutions(count: int) -> Program:
    def program(x: Any, kernel: Any) -> Any:
        for _ in range(count):
            x = _convolution(x, kernel)
        return x

    return program, _images()


def _rounds(count: int) -> Program:
    """Convolutions with kernels between them that make a graph."""
    import jax.numpy as jnp

    def program(x: Any, kernel: Any) -> Any:
        for _ in range(count):
            x = _convolution(x, kernel)
            x = jnp.tanh(x * x.astype(jnp.float32).sum((0, 1, 2)).astype(x.dtype))
            x = x * x.sum().astype(x.dtype)
        return x

    return program, _images()


def _images() -> tuple[Any, Any]:
    import jax.numpy as jnp

    return jnp.ones(_IMAGES, jnp.bfloat16), jnp.full((3, 3, _CHANNELS, _CHANNELS), 1e-2, jnp.bfloat16)


def _handed(count: int) -> Program:
    """Arrays that come back as they are."""
    import jax.numpy as jnp

    return lambda *arrays: arrays, tuple(jnp.full((4,), i, jnp.float32) for i in range(count))
