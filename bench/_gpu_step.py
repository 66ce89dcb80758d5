"""One example's step on the GPU of this process: planned, compiled, run, and the time of each of its kernels.

    python -m bench._gpu_step CASE.json RESULT.json LOCK [FOLDER]

Owns what bench.gpu runs in a process of its own, so that a step which does not fit fails alone. Tracing and planning
need no GPU; compiling and running hold the lock, one process at a time.
"""

from __future__ import annotations

import dataclasses
import fcntl
import importlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

import rhino
from bench._device_steps import Step, judged
from rhino.machine.catalog import preset_names, read_preset

# Kernels of a CUDA graph have no names of their own in a profile; steps of milliseconds take as long without graphs.
APART = {"xla_gpu_enable_command_buffer": ""}
BLOCKS, PROFILED = 4, 3


def timed(step: Callable[..., Any], state: Any, batch: Any, seconds: float) -> tuple[Any, list[float]]:
    """The state after, and the seconds of a step in each of some blocks of steps, so that the host waits seldom."""
    for _ in range(3):
        start = time.perf_counter()
        state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        once = time.perf_counter() - start
    count = max(2, min(200, round(seconds / BLOCKS / once)))
    found = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(count):
            state, metrics = step(state, batch)
        jax.block_until_ready((state, metrics))
        found.append((time.perf_counter() - start) / count)
    return state, found


def profiled(step: Callable[..., Any], state: Any, batch: Any) -> dict[str, tuple[float, float]]:
    """By instruction of XLA's program: seconds in a step, and how many kernels."""
    with TemporaryDirectory() as folder:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = options.python_tracer_level = 0
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(PROFILED):
                state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        return kernels_of(jax.profiler.ProfileData.from_file(str(files[-1])))


def kernels_of(profile: Any) -> dict[str, tuple[float, float]]:
    """As `profiled`, of a profile of PROFILED steps."""
    seconds: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    for plane in profile.planes:
        for line in plane.lines if plane.name.startswith("/device:GPU") else ():
            for event in line.events if line.name.startswith("Stream") else ():
                if name := dict(event.stats).get("hlo_op"):
                    seconds[str(name)] += event.duration_ns * 1e-9 / PROFILED
                    count[str(name)] += 1 / PROFILED
    return {name: (float(f"{seconds[name]:.4g}"), round(count[name], 3)) for name in sorted(seconds)}


def measure(case: Mapping[str, Any], lock: Path, keep: Path | None) -> dict[str, Any]:
    """Times and bytes of a case, predicted and measured."""
    model = importlib.import_module(f"examples.models.{case['module']}")
    config = dataclasses.replace(model.PRESETS[case["preset"]], **case["changes"])
    init, train_step = model.make_train_step(config)
    batch = model.example_batch(config, case["batch"])
    step = rhino.parallelize(train_step, cluster=rhino.Cluster.local(1), donate_argnums=(0,), microbatches=1)
    key = jax.random.key(0)
    shapes = jax.eval_shape(init, key)
    plan = step.plan(shapes, batch)
    device = jax.local_devices()[0]
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        executable = step.lower(shapes, batch).compile(APART)
        batch = jax.device_put(batch, device)
        state, blocks = timed(executable, step.init(init, key), batch, case["seconds"])
        peak = int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))
        kernels = profiled(executable, state, batch)
    preset = _preset_of(step.cluster.device.kind)
    ran = Step(case["name"], preset, f"jax {jax.__version__}", min(blocks), peak, kernels, executable.hlo_text())
    if keep is not None:
        ran.save(keep)
    return {
        **judged(ran).record(),
        "device": device.device_kind,
        "blocks_s": blocks,
        "kernels": sum(count for _, count in kernels.values()),
        "kernels_s": sum(seconds for seconds, _ in kernels.values()),
        "predicted_s": plan.predicted.step_time_s,
        "measured_peak_bytes": peak,
        "predicted_peak_bytes": plan.predicted.peak_bytes,
        "xla_peak_bytes": executable.memory_analysis().peak_bytes,
        "compile_s": executable.seconds,
    }


def _preset_of(kind: str) -> str:
    """The preset whose device this is."""
    return next(name for name in preset_names() if read_preset(name).device.kind == kind)


def main(argv: list[str]) -> None:
    """Entry point."""
    case, result, lock, *keep = argv
    found = measure(json.loads(Path(case).read_text(encoding="utf-8")), Path(lock), Path(keep[0]) if keep else None)
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
