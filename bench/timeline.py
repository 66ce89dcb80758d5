"""Predicted step times against the timelines of what XLA compiled, over the plans of every case of plan_quality.

    python -m bench.timeline [--full] [--only TEXT ...] [--clusters C ...] [--compile found|best|all]
                             [--jobs N] [--quick] [--json FILE|-]

Of each plan, found or an expert's, the search's step time is divided by the timeline's (`rhino compile --overlap
--timeline`): the same model of the device, applied to the kernels, the order and the collectives that XLA chose where
it puts collectives beside computing, as `rhino.parallelize` has it. Of each case the ranks of its plans are compared.
What plan_quality keeps of plans is used, and kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench._common import BenchError, Errors, Table, main, publish, select
from bench._quality_cases import FULL, QUICK, STANDARD, Case
from bench._ranks import spearman
from bench.plan_quality import measure, options

Row = dict[str, Any]


def compared(row: Row) -> list[Row]:
    """The plans of a case that were compiled, with both times."""
    found = []
    for plan in row["plans"]:
        timeline = plan.get("xla", {}).get("timeline")
        if timeline is None:
            continue
        step_s = plan["predicted"]["step_time_s"]
        found.append(
            {
                "plan": plan["plan"],
                "predicted_s": step_s,
                "timeline_s": timeline["total_s"],
                "ratio": step_s / timeline["total_s"],
                "computing_ratio": plan["predicted"]["compute_s"] / sum(timeline["compute_s"].values()),
                "exposed_s": timeline["exposed_s"],
            }
        )
    return found


def judged(row: Row) -> Row:
    """A case: its plans, the correlation of their orders, and found plans over the best expert's by the timeline."""
    plans = compared(row)
    experts = [p["timeline_s"] for p in plans if not p["plan"].startswith("O")]
    against = {p["plan"]: p["timeline_s"] / min(experts) for p in plans if experts and p["plan"].startswith("O")}
    times = [p["predicted_s"] for p in plans], [p["timeline_s"] for p in plans]
    # Two plans say nothing of an order.
    ranks = spearman(*times, near=1.001) if len(plans) > 2 else None
    return {"case": row["case"], "plans": plans, "spearman": ranks, "against_experts": against, "error": row["error"]}


def summary(rows: Sequence[Row]) -> Row:
    """Over all plans and cases; None where there is nothing to say."""
    ratios_off = [abs(p["ratio"] - 1) for row in rows for p in row["plans"]]
    errors = Errors.of(ratios_off) if ratios_off else None
    ranks = [row["spearman"] for row in rows if row["spearman"] is not None]
    found: Row = {"plans": len(ratios_off), "cases": len(rows)}
    found["median_error"] = errors.median if errors else None
    found["p90_error"] = errors.p90 if errors else None
    found["median_spearman"] = statistics.median(ranks) if ranks else None
    for level in ("O1", "O2"):
        worst = [row["against_experts"][level] for row in rows if level in row["against_experts"]]
        found[f"worst_{level}_against_experts"] = max(worst, default=None)
    return found


def tables(rows: Sequence[Row], found: Row) -> list[Table]:
    """As a person reads it."""
    lines = tuple(
        (
            row["case"], str(len(row["plans"])),
            " ".join(f"{p['plan']} {p['ratio']:.2f}" for p in row["plans"]),
            "-" if row["spearman"] is None else f"{row['spearman']:.2f}",
        )
        for row in rows
    )  # fmt: skip
    total = tuple((name, "-" if value is None else f"{value:.3g}") for name, value in found.items())
    return [
        Table("predicted over timeline", ("case", "plans", "ratios", "rank correlation"), lines),
        Table("in all", ("what", "value"), total),
    ]


def body() -> None:
    """Measure and print."""
    args = options().parse_args()
    models = QUICK if args.quick else FULL if args.full else STANDARD
    clusters = args.clusters[:1] if args.quick else args.clusters
    cases = select([Case(model, cluster) for model in models for cluster in clusters], args.only)
    rows = [judged(row) for row in measure(cases, args, overlap=True)]
    found = summary(rows)
    publish("timeline", args, {"cases": rows, "summary": found}, tables(rows, found))
    failed = [row["case"] for row in rows if row["error"]]
    if failed:
        raise BenchError(f"{len(failed)} of {len(rows)} cases are incomplete: {', '.join(failed)}")


if __name__ == "__main__":
    main(body)
