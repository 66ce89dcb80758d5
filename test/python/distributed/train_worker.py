"""One process of a job that trains `small_mlp`; how it goes wrong is its fourth argument: "what process step".

Prints `loss <step> <value>` for each step, and `here` before something goes wrong.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import rhino

address, count, process, *rest = sys.argv[1:]
fault, victim, at = (*rest, "none", "-1", "-1")[:3]
mine = int(process) == int(victim)
if fault == "version" and mine:
    import jax

    jax.__version__ = "0.9.9"
if fault == "twice" and mine:
    process = "0"
rhino.distributed.initialize(address, int(count), int(process), timeout_s=60)

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
    mesh = (2, 4) if fault != "search" else None
    step = rhino.parallelize(small_mlp.train_step, donate_argnums=(0,), mesh=mesh, level=level)
    plan = step.plan(small_mlp.abstract_state(), small_mlp.make_batch(size))
    print("plan", *(f"{tensor.name}:{tensor.sharding}" for tensor in plan.arguments[-2:]), flush=True)
    state = step.init(small_mlp.init, jax.random.key(0))
    for i in range(STEPS):
        if mine and i == int(at):
            print("here", flush=True)
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "raise":
                raise ValueError("bad data in shard 7")
            if fault == "end":
                return
        state, metrics = step(state, small_mlp.make_batch(size, seed=i))
        print("loss", i, float(metrics["loss"]), flush=True)


main()
