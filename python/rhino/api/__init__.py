"""`rhino.parallelize` and what it is made of: tracing, binding, pinning, building and calling a step.

Owns what users call. What a plan is, and its file, is in `rhino.plan`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Loaded on first use, as in rhino.compile: what reads a plan must not start jax.
_EXPORTS = {
    "Parallelized": "rhino.api.parallelized",
    "StridedArray": "rhino.api.strided",
    "original": "rhino.api.strided",
    "parallelize": "rhino.api.parallelized",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'rhino.api' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
