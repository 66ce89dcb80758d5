"""Rhino for JAX: scale a step written for one device to a cluster, with no configuration.

Importing this package imports neither jax nor MLIR, so `rhino-opt` starts fast; the public names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXPORTS = {
    "Cluster": "rhino.machine",
    "Plan": "rhino.plan",
    "parallelize": "rhino.api.parallelized",
    "RhinoError": "rhino.errors",
    "RhinoWarning": "rhino.errors",
    "StridedArray": "rhino.api.strided",
    "original": "rhino.api.strided",
}
_PACKAGES = ("checkpoint", "distributed", "experts", "kernels")
__all__ = [
    "Cluster", "Plan", "RhinoError", "RhinoWarning", "StridedArray", "checkpoint", "distributed", "experts", "kernels",
    "original", "parallelize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    if name in _PACKAGES:
        return import_module(f"rhino.{name}")
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'rhino' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS, *_PACKAGES, "__version__"])


def _version() -> str:
    """The version that pyproject.toml had when this was installed; not looked up before it is asked for."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rhino-jax")
    except PackageNotFoundError:  # a copy of the files that pip did not install
        return "not installed"
