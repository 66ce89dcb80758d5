"""One model on virtual CPU devices: `python -m bench._mesh_model MODEL CLUSTER` prints what its plans take, as JSON.

Plans it by the search and by every expert, compiles all plans, and runs training steps of them in turn. A process of
its own, started by cpu_mesh, so that one that dies loses one model. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

import rhino
from bench._common import interleave, note, spread
from rhino.api.plan import Plan
from rhino.compile.collectives import read_collectives

FOUND = "O1"
# Steps before the timed ones: the first ones touch fresh memory.
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Size:
    """A model that takes 0.2 to 2 seconds a step on two cores: fields of its preset that change, and its batch."""

    preset: str
    batch: int
    changes: Mapping[str, Any]


SIZES: dict[str, Size] = {
    "gpt": Size("tiny", 16, {"layers": 4, "width": 512, "heads": 8, "vocab": 8192, "seq_len": 128}),
    "moe": Size("tiny", 16, {"width": 256, "heads": 8, "experts": 8, "group": 256, "vocab": 4096, "seq_len": 128}),
    # Images large enough for the last blocks: where they are smaller than a kernel, XLA's CPU backend runs a gradient
    # as a plain loop: 0.5 GF/s a device where the kernel's gradient of the same convolution reached 12.
    "wide_resnet": Size("tiny", 32, {"blocks": (1, 1, 1), "width": 64, "image": 64}),
    "unet": Size("tiny", 32, {"width": 64}),
}
QUICK: dict[str, Size] = {
    "gpt": Size("tiny", 8, {"layers": 1, "width": 32, "seq_len": 16}),
    "moe": Size("tiny", 8, {}),
    "wide_resnet": Size("tiny", 8, {"blocks": (1, 1), "image": 16}),
    "unet": Size("tiny", 8, {"image": 8, "attention": (4,)}),
}


@dataclass(slots=True)
class Running:
    """A compiled plan and the state it has come to."""

    step: Any
    state: Any
    losses: list[float]

    def advance(self, batch: Any) -> float:
        """Seconds of one training step."""
        start = time.perf_counter()
        self.state, metrics = self.step(self.state, batch)
        jax.block_until_ready((self.state, metrics))
        seconds = time.perf_counter() - start
        self.losses.append(float(metrics["loss"]))
        return seconds


def plans(
    train_step: Callable[..., Any], cluster: rhino.Cluster, args: tuple[Any, ...], names: Iterable[str]
) -> dict[str, Plan | str]:
    """The plans of these names, the search's (`FOUND`) and experts'; why there is none where there is none."""
    found: dict[str, Plan | str] = {}
    for name in names:
        start = time.perf_counter()
        try:
            if name == FOUND:
                step = rhino.parallelize(train_step, cluster=cluster, level=FOUND, donate_argnums=(0,))
                found[name] = step.plan(*args)
            else:
                found[name] = rhino.experts.plan(name, train_step, cluster, *args, donate_argnums=(0,))
        except rhino.RhinoError as error:
            found[name] = str(error)
        note(f"planned {name} in {time.perf_counter() - start:.1f} s")
    return found


@dataclass(frozen=True, slots=True)
class Made:
    """A model at a size, and what its steps take: shapes and values of the state's and the batch's leaves."""

    params: int
    init_fn: Callable[..., Any]
    train_step: Callable[..., Any]
    shapes: tuple[Any, Any]
    batch: Any


def make(name: str, size: Size) -> Made:
    """A model of examples/models, and the same batch every time."""
    model: Any = importlib.import_module(f"examples.models.{name}")
    config = dataclasses.replace(model.PRESETS[size.preset], **size.changes)
    init_fn, train_step = model.make_train_step(config)
    # Shapes of the state by way of our own init_fn: another train step's optimizer makes another pytree.
    state = jax.eval_shape(init_fn, jax.random.key(0))
    _, batch_shapes = model.abstract_inputs(config, size.batch)
    batch = model.example_batch(config, size.batch)
    return Made(config.num_params(), init_fn, train_step, (state, batch_shapes), batch)


def measure(made: Made, cluster: rhino.Cluster, rounds: int) -> dict[str, Any]:
    """Every plan of one model: prediction, step times, losses; and the plans that do not apply, or fail."""
    chosen = plans(made.train_step, cluster, made.shapes, (FOUND, *rhino.experts.names()))
    running: dict[str, Running] = {}
    rows: dict[str, dict[str, Any]] = {}
    declined: dict[str, str] = {}
    failures: dict[str, str] = {}
    alike: dict[str, str] = {}
    for name, plan in chosen.items():
        if isinstance(plan, str):
            declined[name] = plan
            continue
        try:
            start = time.perf_counter()
            step, text = compiled(made, cluster, plan)
            rows[name] = facts(plan) | {
                "compile_s": time.perf_counter() - start,
                "xla_comm_bytes": by_kind(read_collectives(text)),
                "same_as": alike.setdefault(text, name),
            }
            if rows[name]["same_as"] != name:
                continue
            running[name] = begin(made, step)
            note(f"compiled and ran {name} after {time.perf_counter() - start:.1f} s")
        except Exception as error:  # whatever it is, the other plans are worth knowing
            failures[name] = f"{type(error).__name__}: {error}"
            rows.pop(name, None)
            running.pop(name, None)
            note(f"{name} failed: {failures[name][:500]}")
    gc.disable()
    times = interleave({name: partial(r.advance, made.batch) for name, r in running.items()}, rounds)
    for row in rows.values():
        first = row["same_as"]
        row["step_time_s"] = spread(times[first])
        row["losses"] = running[first].losses
    return {"params": made.params, "plans": rows, "declined": declined, "failures": failures}


def compiled(made: Made, cluster: rhino.Cluster, plan: Plan) -> tuple[Any, str]:
    """The training step under a plan, and the program that XLA made of it."""
    step = rhino.parallelize(made.train_step, cluster=cluster, plan=plan, donate_argnums=(0,))
    step.plan(*made.shapes)
    return step, step.compile(*made.shapes).hlo_text()


def begin(made: Made, step: Any) -> Running:
    """The state at the start, and some steps."""
    running = Running(step, step.init(made.init_fn, jax.random.key(0)), [])
    for _ in range(_WARM_UP):
        running.advance(made.batch)
    return running


def by_kind(collectives: Any) -> dict[str, int]:
    """Bytes that one device sends, by kind."""
    found: dict[str, int] = {}
    for c in collectives:
        found[c.kind] = found.get(c.kind, 0) + c.bytes
    return found


def facts(plan: Plan) -> dict[str, Any]:
    """What is predicted."""
    p = plan.predicted
    return {
        "mesh": [list(axis) for axis in plan.mesh],
        "predicted_s": p.step_time_s,
        "compute_s": p.compute_s,
        "comm_s": p.comm_s,
        "comm_bytes": dict(p.comm_bytes),
        "collectives": dict(p.collectives),
    }


def main() -> None:
    """Measure one model."""
    p = argparse.ArgumentParser(prog="python -m bench._mesh_model")
    p.add_argument("model", choices=SIZES)
    p.add_argument("cluster")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--devices", type=int, default=8)
    p.add_argument("--quick", action="store_true")
    args = p.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", args.devices)
    size = (QUICK if args.quick else SIZES)[args.model]
    print(json.dumps(measure(make(args.model, size), rhino.Cluster.load(args.cluster), args.rounds)))


if __name__ == "__main__":
    main()
