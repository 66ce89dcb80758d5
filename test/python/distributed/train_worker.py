"""One process of a job that trains `small_mlp`; its last arguments: what goes wrong, in which process, at which step.

Prints `loss <step> <value>;` for each step, and `here` before something goes wrong.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import rhino

address, count, process, *rest = sys.argv[1:]
fault, victim, at = rest or ("none", "-1", "-1")
mine = int(process) == int(victim)
if fault == "devices" and mine:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
if fault == "version" and mine:
    import jax

    jax.__version__ = "0.9.9"
if fault == "twice" and mine:
    process = str(int(victim) - 1)
if fault == "missing" and mine:
    sys.exit(3)
if fault == "late" and process == "2":
    time.sleep(float(at))
# A job that cannot be complete waits in vain for so long.
wait_s = 10 if fault == "missing" else 60
started_for = int(count) + (fault in ("count", "late") and mine)
rhino.distributed.initialize(address, started_for, int(process), timeout_s=wait_s)

import jax  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
import small_mlp  # noqa: E402

STEPS = 6


def main() -> None:
    if fault == "program" and mine:
        small_mlp.OPTIMIZER = small_mlp.optax.chain(
            small_mlp.optax.clip_by_global_norm(1.0), small_mlp.optax.adam(2e-2)
        )
    # Enough examples that a plan over all processes is the fastest one.
    size = 8192 if fault == "arguments" and mine else 4096
    level = "O0" if fault == "options" and mine else "O1"
    options: dict[str, Any] = {"donate_argnums": (0,), "mesh": (2, int(count)), "level": level}
    if fault == "memory":
        options["memory_limit"] = 1000
    if fault == "plans":
        options = {"plan": rhino.Plan.load(Path(at) / f"{process}.json")}
    step = rhino.parallelize(small_mlp.train_step, **options)
    if fault == "save":
        for i, mesh in enumerate(((4,), (2, 2))):
            other = rhino.parallelize(small_mlp.train_step, **{**options, "mesh": mesh})
            plan = other.plan(small_mlp.abstract_state(), small_mlp.make_batch(size))
            if process == "0":
                plan.save(Path(at) / f"{i}.json")
        return
    plan = step.plan(small_mlp.abstract_state(), small_mlp.make_batch(size))
    print("plan", *(f"{tensor.name}:{tensor.sharding}" for tensor in plan.arguments[-2:]), flush=True)
    state = step.init(small_mlp.init, jax.random.key(0))
    for i in range(STEPS):
        if mine and str(i) == at:
            print("here", flush=True)
            if fault in ("kill", "collective"):
                if fault == "collective":
                    time.sleep(1.0)  # the others wait in the step by now
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            if fault == "raise":
                raise ValueError("bad data in shard 7")
            if fault == "end":
                return
        state, metrics = step(state, small_mlp.make_batch(size, seed=i))
        # gloo prints beside it, without regard to lines.
        print(f"loss {i} {float(metrics['loss'])};", flush=True)


main()
