"""One process of a job that trains the gated layers, in stages or not, saves, trains on, restores, and trains on again.

Started by `test_checkpoint_processes`: address, number of processes, own number, folder to save to, folder of another
plan's checkpoint or "-", stages. Prints losses.
"""

from __future__ import annotations

import sys
from pathlib import Path

import rhino

address, count, process, folder, other, stages = sys.argv[1:]
rhino.distributed.initialize(address, int(count), int(process), timeout_s=120)

import jax  # noqa: E402

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]  # the models, and examples
from checkpoint_models import gated, train  # noqa: E402

from rhino.checkpoint import restore, save  # noqa: E402


def main() -> None:
    init, train_step, batch = gated()
    options = {"microbatches": 2} if int(stages) > 1 else {}
    step = rhino.parallelize(train_step, donate_argnums=(0,), stages=int(stages), **options)
    step.plan(jax.eval_shape(init, jax.random.key(0)), batch)
    state, _ = train(step, step.init(init, jax.random.key(0)), batch, 1)
    save(folder, state)
    print("losses", *train(step, state, batch, 2)[1], flush=True)
    print("losses", *train(step, restore(folder, step), batch, 2)[1], flush=True)
    if other != "-":
        print("losses", *train(step, restore(other, step), batch, 2)[1], flush=True)


main()
