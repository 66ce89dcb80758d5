"""One process of a job that trains a tiny GPT in two stages, or in four that two groups of devices share.

Its arguments say which, and if layers are scanned.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import rhino

address, count, process, stages, layers, scan = sys.argv[1:]
rhino.distributed.initialize(address, int(count), int(process), timeout_s=120)

import jax  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[3]))
from examples.models import gpt  # noqa: E402

CONFIG = dataclasses.replace(
    gpt.PRESETS["tiny"], layers=int(layers), width=32, heads=2, seq_len=16, scan=scan == "scanned"
)


def main() -> None:
    init, train_step = gpt.make_train_step(CONFIG)
    batch = gpt.example_batch(CONFIG, 8)
    shared = {"schedule": "interleaved-1f1b"} if stages == "4" else {}
    step = rhino.parallelize(train_step, donate_argnums=(0,), stages=int(stages), microbatches=2, **shared)
    key = jax.random.key(0)
    plan = step.plan(jax.eval_shape(init, key), batch)
    print(f"plan {plan.stages} {plan.groups};", flush=True)
    state = step.init(init, key)
    for i in range(3):
        state, metrics = step(state, batch)
        print(f"loss {i} {float(metrics['loss'])};", flush=True)
    placed = step.place(jax.jit(init)(key))
    _, metrics = step(placed, batch)
    print(f"loss 3 {float(metrics['loss'])};", flush=True)


main()
