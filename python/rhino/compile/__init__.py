"""From an annotated module to XLA executables, and from executables to what XLA really allocates and communicates.

Owns: targets, compilation, memory and collectives of one device. Must not know: how plans are searched or costed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Loaded on first use: reading HLO text needs no jax, and `rhino --help` must not pay for it.
_EXPORTS = {
    "Collective": "rhino.compile.collectives",
    "Executable": "rhino.compile.executable",
    "MemoryAnalysis": "rhino.compile.executable",
    "TARGETS": "rhino.compile.target",
    "as_on": "rhino.compile._jax_kernels",
    "collective_bytes": "rhino.compile.collectives",
    "collective_counts": "rhino.compile.collectives",
    "compile_lowered": "rhino.compile.executable",
    "compile_module": "rhino.compile.executable",
    "ensure_cpu_devices": "rhino.compile._jax",
    "prefer_cpu": "rhino.compile._jax",
    "quiet_plugins": "rhino.compile._jax",
    "read_collectives": "rhino.compile.collectives",
    "target_devices": "rhino.compile.executable",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'rhino.compile' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
