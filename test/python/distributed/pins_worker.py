"""One process of a job that trains in stages with batches of two sizes, and says where its state is.

Its arguments say what: two towers in four stages, or a transformer in two.
"""

from __future__ import annotations

import sys
from pathlib import Path

import rhino

address, count, process, model = sys.argv[1:]
rhino.distributed.initialize(address, int(count), int(process), timeout_s=120)

import jax  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
sys.path.insert(0, str(Path(__file__).parents[3]))
from pinned_steps import places, towers, transformer  # noqa: E402

SIZES = (16, 16, 12, 16)


def main() -> None:
    alike = model == "transformer"
    init, train_step, batch = transformer(2, scan=True) if alike else towers((256, 128), (128, 128, 512))
    step = rhino.parallelize(train_step, donate_argnums=(0,), stages=2 if alike else 4, microbatches=4)
    key = jax.random.key(0)
    plan = step.plan(jax.eval_shape(init, key), batch(16))
    print(f"plan {plan.stages} {plan.groups};", flush=True)
    state = step.init(init, key)
    kept = {str(places(state))}
    for i, size in enumerate(SIZES):
        state, metrics = step(state, batch(size))
        kept.add(str(places(state)))
        print(f"loss {i} {float(metrics['loss'])};", flush=True)
    print(f"kept in {len(kept)} places;", flush=True)


if __name__ == "__main__":
    main()
