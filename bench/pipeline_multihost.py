"""Pipelines over hosts: steps of a GPT and a U-Net in four stages, by schedule and transfer, measured and simulated.

    python -m bench.pipeline_multihost [--only gpt|unet] [--rounds N] [--quick] [--json FILE|-]

Four network namespaces of this machine are hosts with 2 CPU devices each and a link shaped to 25 Mbit/s each way; each
has a stage of the model in a process of its own, and runs the product's pipeline over processes. The stages' layers,
losses and gradients are computed, transfers really go over the links, and the loss is compared with one device's. But
the machine has fewer cores than devices, so *the time of computing is mostly made*: models are small, and the devices
of a stage sleep after each forward and backward, for so long that what the busiest way into a stage brings for a
micro-batch takes about a third of forward and backward together when it is sent once (broadcast). Activations are whole
on both devices of a host, and send-recv sends them to each. Beside each step's seconds is the simulator's prediction
from the seconds that each fragment, and the transfers from stage to stage, took by themselves in the same run.

Needs Linux and root (`ip`, `tc`); says so and ends well where it cannot run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench._common import (
    Table,
    check_losses,
    interleave,
    main,
    measure_all,
    note,
    parser,
    publish,
    select,
    spread,
)
from bench._crew import Crew, held
from bench._namespaces import Network, available, network

_STAGES = 4
_RATE_BITS_S = 25e6
# Backward computes forward again, and two gradients.
_FORWARD_S, _BACKWARD_S = 0.12, 0.36
_SCHEDULES = ("gpipe", "1f1b", "eager-1f1b")
_STRATEGIES = ("send-recv", "broadcast")
_BEST, BASE = "eager-1f1b, broadcast", "1f1b, send-recv"
_TOLERANCE = 0.15
_LOSS = 1e-5  # relative


class Model:
    """A case: the name of what makes it in `bench._stage_models`."""

    def __init__(self, name: str) -> None:
        self.name = name


MODELS = (Model("gpt"), Model("unet"))


def measure(model: Model, microbatches: int, rounds: int) -> dict[str, Any]:
    """All schedules and ways of a model, in interleaved rounds.

    Raises:
      BenchError: a process failed, or the steps' losses are not one device's.
    """
    note(f"{model.name}: {_STAGES} stages, {microbatches} micro-batches")
    with network(_STAGES, _RATE_BITS_S) as hosts:
        return _measured(hosts, model, microbatches, rounds)


def _measured(hosts: Network, model: Model, microbatches: int, rounds: int) -> dict[str, Any]:
    from rhino.pipeline.schedule import make_schedule, simulate

    goodput = hosts.goodput(8 << 20)
    first = {"model": f"make_{model.name}", "microbatches": microbatches, "bytes_s": hosts.bytes_s}
    crew = Crew(hosts, "bench._pipeline_worker", first | {"forward_s": _FORWARD_S, "backward_s": _BACKWARD_S})
    described = crew.ask({"do": "describe"}, 300)[0]
    moved = {(a, b): nbytes for a, b, nbytes in described["edges"]}
    equal = [{"forward": _FORWARD_S, "backward": _BACKWARD_S} for _ in range(_STAGES)]
    nominal = _costs(equal, {key: nbytes / hosts.bytes_s for key, nbytes in moved.items()})
    schedules = {name: make_schedule(name, nominal, microbatches) for name in _SCHEDULES}
    ways = {f"{name}, {strategy}": (name, strategy) for name in _SCHEDULES for strategy in _STRATEGIES}
    for way, (name, strategy) in ways.items():
        crew.ask({"do": "build", "name": way, "schedule": schedules[name].to_data(), "strategy": strategy}, 600)
    losses: dict[str, list[float]] = {way: [] for way in ways}

    def step(way: str) -> float:
        ends = crew.ask({"do": "step", "name": way}, 300)
        losses[way].append(next(end["loss"] for end in ends if end["loss"] is not None))
        return float(max(end["end"] for end in ends) - min(end["start"] for end in ends))

    fragments: list[list[dict[str, float]]] = []
    transfers: dict[tuple[str, int, int], list[float]] = {(s, *key): [] for s in _STRATEGIES for key in moved}

    def alone() -> float:
        fragments.append(crew.ask({"do": "fragments"}, 120))
        for (strategy, source, target), samples in transfers.items():
            ends = crew.ask({"do": "transfer", "strategy": strategy, "source": source, "target": target}, 120)
            parts = [end for end in ends if end["is_part"]]
            samples.append(max(end["end"] for end in parts) - min(end["start"] for end in parts))
        return 0.0

    for way in ways:
        step(way)
    alone()
    fragments.clear()
    for samples in transfers.values():
        samples.clear()
    found = interleave(
        {way: _bind(step, way) for way in ways} | {"alone": alone}, rounds, lambda text: note(f"  {text}")
    )
    stages = [
        {kind: statistics.median(each[s][kind] for each in fragments) for kind in fragments[0][s]}
        for s in range(_STAGES)
    ]
    rows = {}
    for way, (name, strategy) in ways.items():
        seconds = {key: statistics.median(transfers[strategy, *key]) for key in moved}
        simulated = simulate(schedules[name], _costs(stages, seconds)).step_time_s
        measured = spread(found[way])
        rows[way] = {
            "seconds": {**measured, "samples": found[way]},
            "simulated_s": simulated,
            "measured_over_simulated": measured["median"] / simulated,
        }
    check_losses(losses, described["losses"], "on one device", _LOSS)
    return {
        "case": model.name,
        "microbatches": microbatches,
        "rate_bytes_s": hosts.bytes_s,
        "goodput_bytes_s": goodput,
        "fragments_s": stages,
        "transfers": [
            {"from": a, "to": b, "bytes": moved[a, b]}
            | {strategy: spread(transfers[strategy, a, b]) for strategy in _STRATEGIES}
            for a, b in moved
        ],
        "ways": rows,
        "targets": targets(rows),
    }


def _bind(step: Callable[[str], float], way: str) -> Callable[[], float]:
    return lambda: step(way)


def _costs(stages: Sequence[Mapping[str, float]], transfers: Mapping[tuple[int, int], float]) -> Any:
    """What the simulator takes; a transfer holds the way out of one host and the way into another."""
    from rhino.pipeline.schedule import Edge, PipelineCosts

    edges = []
    for low, high in sorted({(min(key), max(key)) for key in transfers}):
        ways = (f"out {low}", f"in {high}"), (f"out {high}", f"in {low}")
        edges.append(Edge(low, high, transfers.get((low, high)), transfers.get((high, low)), *ways))
    return PipelineCosts(
        tuple(stage["forward"] for stage in stages),
        tuple(stage["backward"] for stage in stages),
        edges=tuple(edges),
    )


def targets(rows: Mapping[str, Any]) -> dict[str, bool]:
    """What issue 5 asks."""
    medians = {way: row["seconds"]["median"] for way, row in rows.items()}
    simulated = {way: row["simulated_s"] for way, row in rows.items()}
    off = [simulated[BASE] / simulated[way] * medians[way] / medians[BASE] - 1 for way in rows]
    return {
        f"{_BEST} is the fastest": medians[_BEST] == min(medians.values()),
        "simulated steps within 15 %": all(
            abs(row["measured_over_simulated"] - 1) <= _TOLERANCE for row in rows.values()
        ),
        "simulated speed-ups within 15 %": all(abs(each) <= _TOLERANCE for each in off),
    }


def tables(results: Sequence[dict[str, Any]]) -> list[Table]:
    """What is printed."""

    def faster(row: dict[str, Any], way: str, key: Callable[[dict[str, Any]], float]) -> str:
        return f"{key(row['ways'][BASE]) / key(row['ways'][way]):.3f}"

    def median(found: dict[str, Any]) -> float:
        return float(found["seconds"]["median"])

    steps = Table(
        "Seconds of a step, measured (median) and simulated; times as fast as 1f1b with send-recv",
        ("model, way", "measured", "best", "worst", "simulated", "ratio", "faster", "as simulated"),
        tuple(
            (
                f"{row['case']}, {way}",
                *(f"{found['seconds'][key]:.3f}" for key in ("median", "min", "max")),
                f"{found['simulated_s']:.3f}",
                f"{found['measured_over_simulated']:.3f}",
                faster(row, way, median),
                faster(row, way, lambda found: float(found["simulated_s"])),
            )
            for row in results
            for way, found in row["ways"].items()
        ),
    )
    parts = Table(
        "Seconds by themselves",
        ("model, what", "bytes", "seconds", "send-recv", "broadcast"),
        tuple(
            line
            for row in results
            for line in (
                *(
                    (f"{row['case']}, {kind} of stage {stage}", "", f"{seconds:.3f}", "", "")
                    for stage, found in enumerate(row["fragments_s"])
                    for kind, seconds in found.items()
                ),
                *(
                    (
                        f"{row['case']}, stage {moved['from']} to {moved['to']}",
                        str(moved["bytes"]),
                        f"{moved['bytes'] / row['rate_bytes_s']:.3f}",
                        *(f"{moved[strategy]['median']:.3f}" for strategy in _STRATEGIES),
                    )
                    for moved in row["transfers"]
                ),
            )
        ),
    )
    return [table for table in (steps, parts, held("model", results)) if table.rows]


def body() -> None:
    """Measure and print."""
    p = parser("bench.pipeline_multihost", __doc__)
    p.add_argument("--only", action="append", choices=[m.name for m in MODELS], help="one of the models")
    p.add_argument("--rounds", type=int, help="timed rounds (default: 5; 1 with --quick)")
    p.add_argument("--microbatches", type=int, help="of a step (default: 8; 4 with --quick)")
    args = p.parse_args()
    missing = available()
    if missing:
        note(f"skipped: {missing}")
        return
    rounds = args.rounds or (1 if args.quick else 5)
    microbatches = args.microbatches or (4 if args.quick else 8)
    results, failures = measure_all(select(MODELS, args.only), lambda model: measure(model, microbatches, rounds))
    publish("pipeline_multihost", args, {"models": results, "failures": failures}, tables(results))
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main(body)
