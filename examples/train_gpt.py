"""Train a GPT on the shipped novel, on every local device, with a plan that Rhino finds.

Usage:
    python -m examples.train_gpt                             # on the devices of this machine
    python -m examples.train_gpt --cpu-devices 8 --check     # on 8 virtual CPU devices, against one device
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rhino
from examples import options
from examples.models import gpt

# Sharded sums are added up in another order; in float32 the losses still agree to this.
CHECK_RTOL = {"float32": 1e-4, "bfloat16": 2e-2}


def train(
    step: Callable[..., Any], state: Any, batches: Iterable[Any], log: Callable[[str], None]
) -> tuple[Any, list[float], float]:
    """Run `step` once for each batch; returns the last state, the losses, and seconds per step after the first."""
    losses: list[float] = []
    started = time.perf_counter()
    for index, batch in enumerate(batches):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
        log(f"step {index:3d}   loss {losses[-1]:.4f}   gradient norm {float(metrics['grad_norm']):.3f}")
        if index == 0:  # The first step also compiles.
            started = time.perf_counter()
    return state, losses, (time.perf_counter() - started) / max(len(losses) - 1, 1)


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = options.parser("train_gpt", __doc__.splitlines()[0], steps=20)
    parser.add_argument("--level", choices=("O1", "O2"), default="O1", help="effort of the search (default: O1)")
    parser.add_argument("--check", action="store_true", help="train on one device too, and compare the losses")
    parser.add_argument("--compare", action="store_true", help="show what XLA compiled beside what was predicted")
    parser.add_argument("--save-plan", type=Path, metavar="FILE", help="write the plan as JSON")
    args = parser.parse_args(argv)
    options.use_devices(args)

    config = options.model_config(args)
    init_fn, train_step = gpt.make_train_step(config)
    key = jax.random.key(args.seed)
    data = list(islice(options.batches(args, config), args.steps))
    print(f"GPT with {config.num_params():,} parameters on {jax.device_count()} x {jax.devices()[0].device_kind}")

    # All there is to do: hand the step over, and let it plan from the shapes.
    step = rhino.parallelize(train_step, cluster=rhino.Cluster.local(), level=args.level, donate_argnums=(0,))
    state_shapes = jax.eval_shape(init_fn, key)
    plan = step.plan(state_shapes, data[0])
    print(plan.summary(step.compile(state_shapes, data[0]) if args.compare else None))
    if args.save_plan:
        plan.save(args.save_plan)
        print(f"plan written to {args.save_plan}")

    state = step.init(init_fn, key)
    _, losses, step_time_s = train(step, state, data, print)
    tokens = args.batch * config.seq_len
    print(f"{step_time_s:.3f} s per step, {tokens / step_time_s:,.0f} tokens per second")

    if args.check:
        print("the same on one device:")
        with jax.default_device(jax.devices()[0]):
            reference = jax.jit(train_step, donate_argnums=(0,))
            _, expected, _ = train(reference, jax.jit(init_fn)(key), data, lambda line: None)
        worst = float(np.max(np.abs(np.subtract(losses, expected)) / np.abs(expected)))
        rtol = CHECK_RTOL[config.dtype]
        print(f"largest relative difference of the {len(losses)} losses: {worst:.1e} (allowed: {rtol:.0e})")
        if not worst <= rtol:  # NaN must fail too.
            raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
