"""From an annotated module to XLA executables, and from executables to what XLA really allocates and communicates.

Owns: targets, compilation, memory and collectives of one device. Must not know: how plans are searched or costed.
"""

from __future__ import annotations

from rhino.lazy import lazily

# Loaded on first use: reading HLO text needs no jax, and `rhino --help` must not pay for it.
_EXPORTS = {
    "Collective": "rhino.compile.collectives",
    "Executable": "rhino.compile.executable",
    "MemoryAnalysis": "rhino.compile.memory_analysis",
    "TARGETS": "rhino.compile.target",
    "as_on": "rhino.compile._jax_kernels",
    "collective_bytes": "rhino.compile.collectives",
    "collective_counts": "rhino.compile.collectives",
    "compile_lowered": "rhino.compile.executable",
    "compile_module": "rhino.compile.executable",
    "ensure_cpu_devices": "rhino.compile._jax",
    "prefer_cpu": "rhino.compile._jax",
    "ready_for": "rhino.compile._jax",
    "read_collectives": "rhino.compile.collectives",
    "target_devices": "rhino.compile.devices",
}
__all__ = sorted(_EXPORTS)
__getattr__, __dir__ = lazily(__name__, _EXPORTS)
