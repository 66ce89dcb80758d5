"""One example's step on the GPU of this process: planned, compiled, run, and the time of each of its kernels.

    python -m bench._gpu_step CASE.json RESULT.json LOCK [FOLDER]

Owns what bench.gpu runs in a process of its own, so that a step which does not fit fails alone. Many trace, plan and
judge at once; while one compiles and runs, none does: the host's launches decide what a small step takes.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

import rhino
from bench._device_steps import Step, judged
from bench._gpu_cases import Case, planned
from rhino.machine.catalog import preset_names, read_preset
from rhino.machine.host_experiments import ALONE
from rhino.machine.profiled import Kernels, profiled

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


def measure(case: Mapping[str, Any], lock: Path, keep: Path | None) -> dict[str, Any]:
    """Times and bytes of a case, predicted and measured."""
    with _locked(lock, fcntl.LOCK_SH):
        it = planned(Case(**case), rhino.Cluster.local(1))
    device = jax.local_devices()[0]
    with _locked(lock, fcntl.LOCK_EX):
        lowered = it.step.lower(it.shapes, it.batch)
        executable = lowered.compile()
        batch = jax.device_put(it.batch, device)
        state, blocks = timed(executable, it.step.init(it.init, jax.random.key(0)), batch, case["seconds"])
        peak = int((device.memory_stats() or {}).get("peak_bytes_in_use", 0))
        # Kernels of a CUDA graph have no names of their own in a profile.
        apart = lowered.compile(ALONE)
        state, apart_blocks = timed(apart, state, batch, case["seconds"])
        kernels = _kernels(apart, state, batch)
    preset = _preset_of(it.step.cluster.device.kind)
    software, hlo = f"jax {jax.__version__}", apart.hlo_text()
    ran = Step(case["name"], preset, software, min(blocks), peak, kernels, hlo, min(apart_blocks))
    if keep is not None:
        ran.save(keep)
    with _locked(lock, fcntl.LOCK_SH):
        found = judged(ran, it.plan.predicted)
    return {
        **found.record(),
        "device": device.device_kind,
        "blocks_s": blocks,
        "apart_s": ran.apart_s,
        "kernels": sum(count for _, count in kernels.values()),
        "kernels_s": sum(seconds for seconds, _ in kernels.values()),
        "xla_peak_bytes": executable.memory_analysis().peak_bytes,
        "compile_s": executable.seconds,
    }


@contextmanager
def _locked(lock: Path, how: int) -> Iterator[None]:
    """A lock of this kind (`fcntl.LOCK_*`) on a file."""
    with lock.open("w") as file:
        fcntl.flock(file, how)
        yield


def _kernels(step: Callable[..., Any], state: Any, batch: Any) -> Kernels:
    """What each kernel takes in a step."""

    def run() -> Any:
        nonlocal state
        state, metrics = step(state, batch)
        return state, metrics

    return next(iter(profiled(run, PROFILED)), {})


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
