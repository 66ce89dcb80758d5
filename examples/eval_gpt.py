"""Train a GPT and evaluate it on held-out text, with an evaluation step that follows the training step's plan.

Usage:
    python -m examples.eval_gpt --cpu-devices 8
"""

from __future__ import annotations

import math
from itertools import islice

import jax
import numpy as np

import rhino
from examples import options
from examples.models import gpt
from examples.train_gpt import train


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = options.parser("eval_gpt", __doc__.splitlines()[0], steps=20)
    parser.add_argument("--eval-batches", type=int, default=4, help="batches of held-out text (default: 4)")
    args = parser.parse_args(argv)
    options.use_devices(args)

    config = options.model_config(args)
    init_fn, train_step = gpt.make_train_step(config)
    key = jax.random.key(args.seed)
    data = list(islice(options.batches(args, config), args.steps))
    held_out = list(islice(options.batches(args, config, "validation"), args.eval_batches))

    step = rhino.parallelize(train_step, cluster=rhino.Cluster.local(), donate_argnums=(0,))
    step.plan(jax.eval_shape(init_fn, key), data[0])
    # Another function of the same state: it reads the parameters where training left them.
    evaluate = rhino.parallelize(gpt.make_eval_step(config), follow=step)

    state = step.init(init_fn, key)
    for name in ("before training", f"after {args.steps} steps"):
        metrics = [evaluate(state, batch) for batch in held_out]
        loss = float(np.mean([m["loss"] for m in metrics]))
        accuracy = float(np.mean([m["accuracy"] for m in metrics]))
        print(f"{name}: {loss / math.log(2):.3f} bits per byte, {100 * accuracy:.1f} % of the bytes predicted")
        if name == "before training":
            state, _, _ = train(step, state, data, lambda line: None)


if __name__ == "__main__":
    main()
