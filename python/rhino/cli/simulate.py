"""`rhino simulate`: what a pipeline schedule costs, from the seconds of its stages, as a table, JSON or a trace.

Owns this command's options and outputs. Knows nothing of how schedules are made or simulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rhino.cli import files
from rhino.errors import RhinoError
from rhino.machine.units import counted
from rhino.pipeline.schedule import (
    SCHEDULES,
    PipelineCosts,
    ScheduledStep,
    Simulation,
    choose_warmup,
    chrome_trace,
    make_schedule,
    simulate,
)


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `simulate` command to the subparsers of `rhino`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "simulate",
        help="play a pipeline schedule",
        description="Play a pipeline schedule on a chain of stages. Times are in any unit, the same for all; N is one "
        "number for all stages, or one per stage: 1,1,2.",
        epilog="try rhino simulate --schedule 1f1b --stages 4 --microbatches 8 --forward 1 --backward 2",
    )
    parser.add_argument("--schedule", metavar="S", required=True, help=", ".join(SCHEDULES))
    parser.add_argument("--stages", type=int, metavar="COUNT", required=True, help="stages of the chain")
    parser.add_argument("--microbatches", type=int, metavar="COUNT", required=True, help="micro-batches of a step")
    parser.add_argument("--forward", metavar="N", required=True, help="forward time of a micro-batch")
    parser.add_argument("--backward", metavar="N", required=True, help="backward time of a micro-batch")
    parser.add_argument("--transfer", type=float, default=0.0, metavar="TIME", help="one transfer, either way (0)")
    parser.add_argument(
        "--weight",
        metavar="N",
        help="the part of backward that makes weight gradients, computed after the others are sent (default: none; "
        "half of backward with zero-bubble)",
    )
    parser.add_argument("--k", type=int, help="of kfkb: micro-batches that go together (default: the fastest)")
    parser.add_argument(
        "--groups",
        type=int,
        metavar="COUNT",
        help="device groups; stage s runs on s mod COUNT (default: one each; half as many with interleaved-1f1b)",
    )
    parser.add_argument(
        "--warmup",
        metavar="N",
        help="forwards of each stage before its first backward, instead of what the schedule says; auto takes the "
        "fewest that hide transfers",
    )
    parser.add_argument("--json", metavar="F", help="write JSON to F, or - for standard output")
    parser.add_argument("--trace", metavar="F", help="write a trace for ui.perfetto.dev or chrome://tracing")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    return parser


def run(args: argparse.Namespace) -> int:
    """Play the schedule, then write what was asked for. RhinoError on bad input, for the caller to print."""
    files.check_writable(args.json, args.trace)
    costs = _costs(args)
    schedule = _make(args, costs, args.microbatches)
    result = simulate(schedule, costs)
    data = _json(schedule, costs, result, _steady_time(args, costs, schedule, result))
    if args.trace:
        files.write(args.trace, json.dumps(chrome_trace(result, costs)) + "\n")
    if args.json:
        files.write(args.json, json.dumps(data, indent=1) + "\n")
    # Standard output belongs to one reader: a machine when JSON or the trace goes there.
    if not args.quiet and "-" not in (args.json, args.trace):
        _print(data, costs, result)
    return 0


def _costs(args: argparse.Namespace) -> PipelineCosts:
    n = args.stages
    if n < 1:
        raise RhinoError(f"--stages {n} is not a positive number", "give 1 or more")
    backward = _numbers(args.backward, n, "--backward")
    zero_bubble = args.schedule == "zero-bubble"
    if args.weight is not None:
        weight = _numbers(args.weight, n, "--weight")
    else:
        weight = tuple(b / 2 for b in backward) if zero_bubble else (0.0,) * n
    groups = args.groups
    if groups is None and args.schedule == "interleaved-1f1b":
        groups = -(-n // 2)
    return PipelineCosts.chain(_numbers(args.forward, n, "--forward"), backward, args.transfer, weight, groups)


def _numbers(text: str, stages: int, option: str) -> tuple[float, ...]:
    """One number for all stages, or one per stage."""
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError:
        raise RhinoError(f"{option} {text!r} is not a number, nor numbers with commas between", "give 1.5 or 1,1,2"
                         ) from None  # fmt: skip
    if len(values) not in (1, stages):
        raise RhinoError(f"{option} has {len(values)} values, but there are {stages} stages", "give one, or one each")
    return values * stages if len(values) == 1 else values


def _make(args: argparse.Namespace, costs: PipelineCosts, microbatches: int) -> ScheduledStep:
    # Zero-bubble always delays weight gradients, and says so where it cannot.
    delay = None if args.weight is None or args.schedule == "zero-bubble" else True
    warmup = None
    if args.warmup == "auto":
        warmup = choose_warmup(costs, microbatches, bool(delay))
    elif args.warmup is not None:
        counts = _numbers(args.warmup, costs.stages, "--warmup")
        if any(count != int(count) for count in counts):
            raise RhinoError(f"--warmup {args.warmup!r} must be whole numbers", "give 4,3,2,1, or auto")
        warmup = tuple(map(int, counts))
    return make_schedule(args.schedule, costs, microbatches, k=args.k, warmup=warmup, delay_weight=delay)


def _steady_time(args: argparse.Namespace, costs: PipelineCosts, schedule: ScheduledStep, result: Simulation) -> float:
    """Of a step long enough to settle, with otherwise the same request: a short one never does."""
    enough = 20 * max(costs.stages, *schedule.warmup) if args.schedule != "gpipe" else 20 * costs.stages
    if args.microbatches >= enough:
        return result.steady_time_per_microbatch_s
    return simulate(_make(args, costs, enough), costs).steady_time_per_microbatch_s


def _json(schedule: ScheduledStep, costs: PipelineCosts, result: Simulation, steady_time: float) -> dict[str, Any]:
    return {
        "schema": 1,
        "schedule": schedule.name,
        "stages": schedule.stages,
        "microbatches": schedule.microbatches,
        "groups": list(costs.groups),
        "step_time": result.step_time_s,
        "steady_time_per_microbatch": steady_time,
        "bubble_fraction": result.bubble_fraction,
        "in_flight_peak": list(result.in_flight_peak),
        "warmup": list(schedule.warmup),
        "busy_time": list(result.busy_s),
        "exposed_transfer_time": list(result.exposed_s),
    }


def _print(data: dict[str, Any], costs: PipelineCosts, result: Simulation) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width: give it the room that the table asks for, so that lines stay whole.
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)
    count, stages = counted(costs.group_count, "group"), counted(data["stages"], "stage")
    console.print(f"{data['schedule']}: {stages} on {count}, {data['microbatches']} micro-batches", style="bold")
    console.print(
        f"step time {data['step_time']:.6g}, {data['steady_time_per_microbatch']:.6g} per micro-batch in steady state, "
        f"bubble {data['bubble_fraction']:.1%}"
    )
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for name in ("group", "stages", "first forwards", "in flight", "computing", "waiting for transfers", "idle"):
        table.add_column(name, justify="right")
    for group in range(costs.group_count):
        mine = costs.stages_of(group)
        table.add_row(
            str(group),
            ", ".join(map(str, mine)),
            ", ".join(str(data["warmup"][s]) for s in mine),
            ", ".join(str(result.in_flight_peak[s]) for s in mine),
            f"{result.busy_s[group]:.6g}",
            f"{result.exposed_s[group]:.6g}",
            f"{result.step_time_s - result.busy_s[group] - result.exposed_s[group]:.6g}",
        )
    console.print(table)
