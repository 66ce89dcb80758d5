"""What kernels took on GPUs, by jax's profiler. Imports jax when called, never at import."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# By instruction of XLA's program: seconds of an execution, and how many kernels.
Kernels = dict[str, tuple[float, float]]


def profiled(run: Callable[[], Any], times: int) -> list[Kernels]:
    """What the kernels of a program take, on each GPU of this process: none where there is none.

    Args:
      run: starts the program once; what it returns is waited for behind the last one.
      times: how often to run it. What is found is the mean.
    """
    import jax

    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = options.python_tracer_level = 0
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(times):
                made = run()
            jax.block_until_ready(made)
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        return kernels_of(jax.profiler.ProfileData.from_file(str(files[-1])), times)


def kernels_of(profile: Any, times: int) -> list[Kernels]:
    """As `profiled`, of a profile (`jax.profiler.ProfileData`) of so many executions."""
    return [
        found
        for plane in profile.planes
        if plane.name.startswith("/device:GPU") and (found := _kernels_of(plane, times))
    ]


def _kernels_of(plane: Any, times: int) -> Kernels:
    seconds: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    for line in plane.lines:
        for event in line.events if line.name.startswith("Stream") else ():
            if name := dict(event.stats).get("hlo_op"):
                seconds[str(name)] += event.duration_ns * 1e-9 / times
                count[str(name)] += 1 / times
    return {name: (float(f"{seconds[name]:.4g}"), round(count[name], 3)) for name in sorted(seconds)}
