"""Kernels that a file holds compiled: Triton's, Mosaic's for GPUs and TPUs. Nobody can cut them; some say their cost.

Owns which calls these are, and what is read from them. Where a step is traced, kernels are made anew from their grids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rhino.kernels.data import Entry, KernelCall, Known, Refused

_TRITON = ("__gpu$xla.gpu.triton", "triton_kernel_call", "triton_kernel_call_ffi", "__gpu$xla.gpu.ptx")
_MOSAIC = ("mosaic_gpu", "mosaic_gpu_v2")
_TPU = ("tpu_custom_call",)
TARGETS = frozenset((*_TRITON, *_MOSAIC, *_TPU))


def _describe(call: KernelCall) -> Known:
    flops, nbytes = _cost(call.config)
    name = call.config.get("name")
    anew = "plan the step in Python with rhino.parallelize, which makes its kernels anew from their grids"
    own = f", or, if the kernel does not depend on its sizes, rhino.kernels.register('{name}', rule=.., resize=..)"
    raise Refused(
        "it is compiled for these shapes", f"{anew}{own if name else ''}", flops=flops, nbytes=nbytes
    )  # fmt: skip


def _cost(config: Mapping[str, Any]) -> tuple[int, int]:
    """Arithmetic and memory traffic, 0 where the call does not say: `cost_estimate` of Pallas kernels for TPUs."""
    inner = config.get("custom_call_config")
    given = inner.get("cost_estimate") if isinstance(inner, Mapping) else None
    if not isinstance(given, Mapping):
        return 0, 0
    return _number(given.get("flops")), _number(given.get("bytes_accessed"))


def _number(value: Any) -> int:
    return max(0, int(value)) if isinstance(value, int | float) else 0


_DOC = (
    "Not split: they are compiled for the shapes they have. Where `rhino.parallelize` traces the step, kernels are "
    "made anew for a device's part."
)

ENTRIES = (
    Entry(
        "triton",
        _TRITON,
        f"Triton kernels in files, from Pallas and jax-triton. {_DOC} One that does not depend on its sizes can be "
        "registered by its own name, with `resize` for its grid.",
        _describe,
    ),
    Entry("mosaic-gpu", _MOSAIC, f"Pallas' Mosaic kernels for GPUs, in files. {_DOC}", _describe),
    Entry(
        "mosaic-tpu",
        _TPU,
        f"Pallas' kernels for TPUs, in files. {_DOC} Their cost estimate is what they are priced by. One that does not "
        "depend on its sizes can be registered by its own name.",
        _describe,
    ),
)
