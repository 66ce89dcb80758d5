"""Collectives beside computing: found plans compiled in XLA's plain order, and by the times of their cluster.

    python -m bench.overlap [--only CASE ...] [--quick] [--json FILE|-]

Each step is planned by `rhino plan` and compiled by `rhino compile` for GPUs that need not be here, without and with
`--overlap`. Compared are the timelines of the two programs, what computing waits for in them, and their peak memory.
The baseline of the same run is the plain order, beside the prediction of the plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench._common import CACHE, Table, gib, main, measure_and_publish, note, parser, run, select, tool
from bench._quality_cases import Case, Model, module
from rhino.machine import Cluster

_LOOP = ("--scan", "--remat")
CASES: tuple[Case, ...] = (
    Case(Model("gpt", "1.3b", 64, ("--remat",)), "dgx-h100:1"),
    Case(Model("gpt", "1.3b", 512, _LOOP), "dgx-h100:8"),
    Case(Model("llama", "llama2-7b", 32, _LOOP), "dgx-h100:4"),
    # It takes more of a device than XLA's scheduler keeps to by itself.
    Case(Model("llama", "llama2-7b", 1024, _LOOP), "dgx-h100:1"),
    Case(Model("bert", "large", options=_LOOP), "dgx-h100:2"),
    Case(Model("moe", "1.3b", options=_LOOP), "dgx-a100:2"),
    Case(Model("t5", "3b", options=_LOOP), "dgx-a100:2"),
    Case(Model("lstm", "250m", options=_LOOP), "p3.16xlarge:1"),
    # Over a slow network: sums of gradients in the loop over layers, which wait for a trip.
    Case(Model("gpt", "1.3b", options=_LOOP), "p3.16xlarge:8"),
    Case(Model("bert", "large", options=_LOOP), "p3.16xlarge:8"),
)
QUICK: tuple[Case, ...] = (Case(Model("mlp", "tiny"), "dgx-h100:1"),)
ORDERS = ("plain", "overlap")
Row = dict[str, Any]


def compiled(case: Case, planned: Path, order: str) -> Row:
    """What XLA makes of a planned module in one of the orders, and its timeline."""
    record, trace = planned.with_suffix(f".{order}.json"), planned.with_suffix(f".{order}.trace")
    note(f"{case.name}: compiling, {order}")
    target = Cluster.load(case.cluster).device.xla_target
    flags = ["--overlap"] if order == "overlap" else []
    command: list[str | Path] = [
        *tool("rhino"), "compile", planned, "--target", target, "--timeline", trace, "--json", record, "-q",
    ]  # fmt: skip
    run([*command, *flags], env={"JAX_PLATFORMS": "cpu"})
    found = json.loads(record.read_text(encoding="utf-8"))
    timeline = found["timeline"]
    return {
        "step_s": timeline["total_s"],
        "computing_s": sum(timeline["compute_s"].values()),
        "sent_s": timeline["sent_s"],
        "waited_s": timeline["exposed_s"],
        "peak_bytes": found["peak_bytes"],
        "compile_s": found["seconds"],
    }


def measure(case: Case) -> Row:
    """Plan a step, compile it in both orders."""
    folder = CACHE / "overlap"
    folder.mkdir(parents=True, exist_ok=True)
    planned = folder / f"{case.name.replace(':', 'x')}.mlir"
    record = planned.with_suffix(".plan.json")
    note(f"{case.name}: planning")
    run([*tool("rhino"), "plan", module(case.model), "--cluster", case.cluster, "--stages", "1", "-o", planned,
         "--json", record, "-q"])  # fmt: skip
    plan = json.loads(record.read_text(encoding="utf-8"))
    orders = {order: compiled(case, planned, order) for order in ORDERS}
    return {
        "case": case.name,
        "mesh": plan["mesh"],
        "predicted": plan["predicted"],
        **orders,
        "step_ratio": orders["overlap"]["step_s"] / orders["plain"]["step_s"],
        "peak_ratio": orders["overlap"]["peak_bytes"] / orders["plain"]["peak_bytes"],
    }


def tables(rows: Sequence[Row]) -> list[Table]:
    """As a person reads it."""

    def times(row: Row) -> tuple[str, ...]:
        found = [row[order] for order in ORDERS]
        return (
            f"{1e3 * row['predicted']['step_time_s']:.1f}",
            *(f"{1e3 * one['step_s']:.1f}" for one in found),
            *(f"{1e3 * sum(one['waited_s'].values()):.1f}" for one in found),
            gib(row["predicted"]["peak_bytes"]),
            *(gib(one["peak_bytes"]) for one in found),
        )

    heads = (
        "case", "predicted ms", "plain", "overlap", "waits, plain", "overlap", "predicted GiB", "plain", "overlap",
    )  # fmt: skip
    return [Table("a step by its timeline", heads, tuple((row["case"], *times(row)) for row in rows))]


def body() -> None:
    """Measure and print."""
    p = parser("bench.overlap", __doc__)
    p.add_argument("--only", nargs="+", metavar="CASE", help="cases by name, or by a part of it")
    args = p.parse_args()
    cases = QUICK if args.quick else select(CASES, args.only)
    measure_and_publish("overlap", args, cases, measure, tables)


if __name__ == "__main__":
    main(body)
