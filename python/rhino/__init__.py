"""Rhino for JAX: scale a step written for one device to a cluster, with no configuration.

Importing this package imports neither jax nor MLIR, so `rhino-opt` starts fast; the public names load on first use.
"""

from __future__ import annotations

from rhino.lazy import lazily

_EXPORTS = {
    "Cluster": "rhino.machine",
    "Plan": "rhino.api.plan",
    "compare": "rhino.experts.compare",
    "parallelize": "rhino.api.parallelized",
    "RhinoError": "rhino.errors",
    "RhinoWarning": "rhino.errors",
    "StridedArray": "rhino.api.strided",
    "original": "rhino.api.strided",
    "__version__": "rhino.version",
}
_PACKAGES = ("checkpoint", "distributed", "experts", "kernels")
__all__ = [
    "Cluster", "Plan", "RhinoError", "RhinoWarning", "StridedArray", "checkpoint", "compare", "distributed", "experts",
    "kernels", "original", "parallelize",
]  # fmt: skip


__getattr__, __dir__ = lazily(__name__, {**_EXPORTS, **{name: f"rhino.{name}" for name in _PACKAGES}})
