"""Step time of a GPT on virtual CPU devices: Rhino's plan, data parallel written by hand, and one device.

    python -m bench.train_cpu [--preset 10m] [--batch 8] [--seq 128] [--devices 8] [--rounds N] [--json FILE|-]

The devices share the cores of this machine, so no plan can be faster than one device that uses all the cores as well;
what shows is the cost of what a plan adds (communication, repeated work) and the memory it saves. All three take the
same batches from the host, and their losses are compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench._common import BenchError, Table, interleave, main, mib, note, parser, publish, spread

# Sums over devices are added in another order than on one; in float32 the losses agree to this.
RTOL = 1e-4


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the step: how to make its state, its step, and its executable (for XLA's own numbers)."""

    init: Callable[[], Any]
    step: Callable[[Any, Any], tuple[Any, Any]]
    compiled: Callable[[Any, Any], Any]


def ways(args: argparse.Namespace) -> tuple[dict[str, Way], list[Any], dict[str, Any]]:
    """The three ways, the batches of all rounds, and facts of the plan."""
    import dataclasses
    from itertools import islice

    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import rhino
    from examples.data import text
    from examples.models import gpt

    preset = gpt.PRESETS[args.preset]
    config = dataclasses.replace(preset, vocab=text.VOCAB, dtype="float32", seq_len=min(args.seq, preset.seq_len))
    init_fn, train_step = gpt.make_train_step(config)
    key = jax.random.key(0)
    data = list(islice(text.batches(text.load("train"), args.batch, config.seq_len, 0), args.rounds + 1))

    def lowered(step: Any) -> Callable[[Any, Any], Any]:
        return lambda state, batch: step.lower(state, batch).compile()

    mesh = Mesh(jax.devices(), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    by_hand = jax.jit(train_step, in_shardings=(whole, split), out_shardings=whole, donate_argnums=(0,))
    alone = jax.jit(train_step, donate_argnums=(0,))

    found = rhino.parallelize(train_step, cluster=rhino.Cluster.local(), level=args.level, donate_argnums=(0,))
    abstract = jax.eval_shape(init_fn, key)
    started = time.perf_counter()
    plan = found.plan(abstract, data[0])
    facts = {
        "params": config.num_params(),
        "mesh": [list(axis) for axis in plan.mesh],
        "plan_s": time.perf_counter() - started,
        "predicted_step_time_s": plan.predicted.step_time_s,
        "predicted_peak_bytes": plan.predicted.peak_bytes,
    }
    table = {
        "rhino": Way(
            lambda: found.init(init_fn, key), found, lambda state, batch: found.compile(state, batch).compiled
        ),
        "data parallel by hand": Way(lambda: jax.jit(init_fn, out_shardings=whole)(key), by_hand, lowered(by_hand)),
        "one device": Way(lambda: jax.jit(init_fn)(key), alone, lowered(alone)),
    }
    return table, data, facts


def measure(table: dict[str, Way], data: list[Any], rounds: int) -> dict[str, dict[str, Any]]:
    """For each way: step times of interleaved rounds, its losses, and what XLA says of its executable."""
    import jax

    from rhino.compile.collectives import read_collectives

    states: dict[str, Any] = {}
    results: dict[str, dict[str, Any]] = {}
    for name, way in table.items():
        note(f"compiling: {name}")
        state = way.init()
        compiled = way.compiled(state, data[0])
        memory = compiled.memory_analysis()
        results[name] = {
            "argument_bytes": memory.argument_size_in_bytes,
            "temp_bytes": memory.temp_size_in_bytes,
            "comm_bytes": sum(c.bytes for c in read_collectives(compiled.as_text())),
            "collectives": sum(c.count for c in read_collectives(compiled.as_text())),
        }
        state, metrics = way.step(state, data[0])  # the first call compiles, or fills the cache
        states[name] = state
        results[name]["losses"] = [float(metrics["loss"])]

    def timed(name: str) -> Callable[[], float]:
        def once() -> float:
            batch = data[len(results[name]["losses"])]
            started = time.perf_counter()
            states[name], metrics = table[name].step(states[name], batch)
            jax.block_until_ready((states[name], metrics))
            seconds = time.perf_counter() - started
            results[name]["losses"].append(float(metrics["loss"]))
            return seconds

        return once

    times = interleave({name: timed(name) for name in table}, rounds, note)
    for name, samples in times.items():
        results[name]["step_time_s"] = spread(samples)
    return results


def check_losses(results: dict[str, dict[str, Any]]) -> float:
    """Largest relative difference to the losses of one device. Raises BenchError when they differ."""
    expected = results["one device"]["losses"]
    worst = 0.0
    for name, result in results.items():
        for ours, theirs in zip(result["losses"], expected, strict=True):
            difference = abs(ours - theirs) / abs(theirs)
            if not difference <= RTOL:  # NaN must fail too
                raise BenchError(f"{name}: loss {ours} differs from one device's {theirs}")
            worst = max(worst, difference)
    return worst


def body() -> None:
    """Measure and print."""
    p = parser("bench.train_cpu", __doc__)
    p.add_argument("--preset", default="10m", help="size of the GPT (default: 10m)")
    p.add_argument("--batch", type=int, default=8, help="sequences in a batch (default: 8)")
    p.add_argument("--seq", type=int, default=128, help="bytes in a sequence (default: 128)")
    p.add_argument("--devices", type=int, default=8, help="virtual CPU devices (default: 8)")
    p.add_argument("--level", default="O1", help="effort of the search (default: O1)")
    p.add_argument("--rounds", type=int, help="steps of each way (default: 20; 4 with --quick)")
    args = p.parse_args()
    args.rounds = args.rounds or (4 if args.quick else 20)

    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", args.devices)
    table, data, facts = ways(args)
    results = measure(table, data, args.rounds)
    worst = check_losses(results)

    slowest = results["one device"]["step_time_s"]["median"]
    rows = tuple(
        (
            name,
            f"{r['step_time_s']['median']:.3f}",
            f"{r['step_time_s']['min']:.3f}",
            f"{slowest / r['step_time_s']['median']:.2f}x",
            mib(r["argument_bytes"]),
            mib(r["temp_bytes"]),
            f"{r['comm_bytes'] / 1e6:.1f}",
            str(r["collectives"]),
        )
        for name, r in results.items()
    )
    shape = " x ".join(f"{axis}={size}" for axis, size in facts["mesh"])
    model = f"GPT, {facts['params'] / 1e6:.1f} M parameters, batch {args.batch} x {args.seq}"
    title = f"{model}; {args.devices} CPU devices, found {shape}; losses agree to {worst:.0e}"
    columns = ("way", "median s", "min s", "vs one", "arguments MiB", "temporaries MiB", "sent MB", "collectives")
    publish(
        "train_cpu",
        args,
        {"plan": facts, "ways": results, "loss_difference": worst},
        [Table(title, columns, rows)],
    )


if __name__ == "__main__":
    main(body)
