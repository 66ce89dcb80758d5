"""Attention by a fused kernel, for models that take `attention="cudnn"`.

Owns the choice of the kernel and its options' names; knows no model.
"""

from __future__ import annotations

from typing import Any

import jax

KINDS = ("xla", "cudnn")


def check(kind: str) -> None:
    """Raises ValueError unless there is such a kind of attention."""
    if kind not in KINDS:
        raise ValueError(f"attention is {kind!r}; it must be 'xla' or 'cudnn'")


def fused(query: jax.Array, key: jax.Array, value: jax.Array, **options: Any) -> jax.Array:
    """`jax.nn.dot_product_attention` of [B, T, N, H] to [B, S, K, H] by cuDNN, where the step is traced for a GPU.

    Elsewhere it is the same function as XLA computes it, so that the step also runs on CPUs. cuDNN takes float16 and
    bfloat16 and heads whose size is a multiple of 8; it says so while the step is traced.
    """
    try:
        return jax.nn.dot_product_attention(query, key, value, implementation="cudnn", **options)
    except RuntimeError as error:
        # A GPU without cuDNN is a mistake in the installation, and not to be passed over.
        if "cuDNN" not in str(error) or jax.default_backend() == "gpu":
            raise
        return jax.nn.dot_product_attention(query, key, value, implementation="xla", **options)
