"""Use only the plan: its shardings, given to plain `jax.jit`, run the training step without Rhino's runtime.

Usage:
    python -m examples.plain_jit --cpu-devices 8
"""

from __future__ import annotations

from itertools import islice

import jax

import rhino
from examples import options
from examples.models import gpt
from examples.train_gpt import train


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    args = options.parser("plain_jit", __doc__.splitlines()[0], steps=5).parse_args(argv)
    options.use_devices(args)

    config = options.model_config(args)
    init_fn, train_step = gpt.make_train_step(config)
    key = jax.random.key(args.seed)
    data = list(islice(options.batches(args, config), args.steps))

    planner = rhino.parallelize(train_step, cluster=rhino.Cluster.local(), donate_argnums=(0,))
    plan = planner.plan(jax.eval_shape(init_fn, key), data[0])
    state_shardings, _ = plan.in_shardings
    state = jax.jit(init_fn, out_shardings=state_shardings)(key)
    step = jax.jit(train_step, in_shardings=plan.in_shardings, out_shardings=plan.out_shardings, donate_argnums=(0,))
    train(step, state, data, print)


if __name__ == "__main__":
    main()
