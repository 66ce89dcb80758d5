"""BatchNorm by micro-batch, written by hand: what a step with statistics of micro-batches must compute.

Owns the reference: of N micro-batches the i-th has the examples i, i + N, i + 2N, .., as the loop over them has. It is
one program over the whole batch, so that autodiff gives the sum of the micro-batches' gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax.numpy as jnp
from flax import linen as nn
from jax import lax


def norm_by_microbatch(count: int) -> type[nn.Module]:
    """Flax's BatchNorm with its defaults, normalising each of `count` micro-batches by its own statistics.

    The running statistics get those of all examples: means of the micro-batches' means and mean squares.
    """

    class BatchNorm(nn.Module):
        use_running_average: bool
        momentum: float = 0.99
        epsilon: float = 1e-5
        dtype: Any = None
        scale_init: Any = nn.initializers.ones

        @nn.compact
        def __call__(self, x: Any) -> Any:
            channels = (x.shape[-1],)
            ra_mean = self.variable("batch_stats", "mean", jnp.zeros, channels)
            ra_var = self.variable("batch_stats", "var", jnp.ones, channels)
            scale = self.param("scale", self.scale_init, channels)
            bias = self.param("bias", nn.initializers.zeros, channels)
            if self.use_running_average:
                return (x - ra_mean.value) * lax.rsqrt(ra_var.value + self.epsilon) * scale + bias
            parts = x.reshape(-1, count, *x.shape[1:])
            axes = (0, *range(2, x.ndim))
            mean, square = parts.mean(axes, keepdims=True), (parts * parts).mean(axes, keepdims=True)
            var = jnp.maximum(0.0, square - mean * mean)
            whole = mean.mean(1).reshape(channels)
            spread = jnp.maximum(0.0, square.mean(1).reshape(channels) - whole * whole)
            ra_mean.value = self.momentum * ra_mean.value + (1 - self.momentum) * lax.stop_gradient(whole)
            ra_var.value = self.momentum * ra_var.value + (1 - self.momentum) * lax.stop_gradient(spread)
            y = (parts - mean) * (lax.rsqrt(var + self.epsilon) * scale) + bias
            return y.reshape(x.shape)

    return BatchNorm


def by_microbatch(step: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A step of a model with flax's BatchNorm, with its statistics by micro-batch."""

    def ghost(state: Any, batch: Any) -> Any:
        with mock.patch.object(nn, "BatchNorm", norm_by_microbatch(count)):
            return step(state, batch)

    return ghost
