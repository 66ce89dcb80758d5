"""Step time of found plans and of experts' plans, executed on 8 virtual CPU devices, beside what was predicted.

    python -m bench.cpu_mesh [--only MODEL ...] [--cluster FILE] [--rounds N] [--quick] [--json FILE|-]

The cluster is this machine, calibrated first unless a file is given. For each model the search's plan and every
expert's that applies are compiled and run training steps in turn, so that all meet the same machine; medians count.
Reported are the found plan's time over the best expert's, and how well predictions rank what was measured (Spearman).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench._common import CACHE, Table, main, measure_all, note, parser, publish, run, select, tool
from bench._ranks import spearman

FOUND = "O1"
# Memory that a step has freed stays with the process, as it does in an accelerator's allocator. By default glibc
# returns it, and page faults that no plan decides took 18 to 40 % of a mixture of experts' step.
KEEP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
         "MALLOC_TOP_PAD_": str(1 << 28)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """A model of examples/models; its size is in bench._mesh_model."""

    name: str


MODELS = (Model("gpt"), Model("moe"), Model("wide_resnet"), Model("unet"))


def unlike(plans: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The plans that XLA compiled to programs of their own: those that are the same program were measured once."""
    return [row for name, row in plans.items() if row["same_as"] == name]


def summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """Found over best expert, and the rank correlation, of one model; None for what its failures leave out."""
    plans = result["plans"]
    experts = {name: row["step_time_s"]["median"] for name, row in plans.items() if name != FOUND}
    best = min(experts, key=experts.__getitem__, default=None)
    found = plans.get(FOUND)
    own = unlike(plans)
    return {
        "best_expert": best,
        "found_over_best": found["step_time_s"]["median"] / experts[best] if found and best else None,
        "spearman": spearman([r["predicted_s"] for r in own], [r["step_time_s"]["median"] for r in own]),
    }


def table(result: Mapping[str, Any]) -> Table:
    """The plans of one model, the fastest first."""
    rows = sorted(result["plans"].items(), key=lambda item: item[1]["step_time_s"]["median"])
    facts = result["summary"]
    title = (
        f"{result['case']}, {result['params'] / 1e6:.1f} M parameters: found over best expert "
        f"{_text(facts['found_over_best'])}, rank correlation {_text(facts['spearman'])}"
    )
    return Table(
        title,
        ("plan", "mesh", "measured ms", "least ms", "predicted ms", "computing ms", "communication ms", "same as"),
        tuple(
            (
                name,
                "x".join(str(size) for _, size in row["mesh"]),
                f"{row['step_time_s']['median'] * 1e3:.1f}",
                f"{row['step_time_s']['min'] * 1e3:.1f}",
                f"{row['predicted_s'] * 1e3:.1f}",
                f"{row['compute_s'] * 1e3:.1f}",
                f"{row['comm_s'] * 1e3:.1f}",
                "" if row["same_as"] == name else row["same_as"],
            )
            for name, row in rows
        ),
    )


def _text(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def body() -> None:
    """Measure and print."""
    p = parser("bench.cpu_mesh", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the models whose name contains one of these")
    p.add_argument("--cluster", help="a cluster file, or `local` for the preset's rates (default: calibrate)")
    p.add_argument("--devices", type=int, default=8, help="virtual CPU devices (default: 8)")
    p.add_argument("--rounds", type=int, help="timed steps of each plan (default: 15; 2 with --quick)")
    args = p.parse_args()
    rounds = args.rounds or (2 if args.quick else 15)
    models = select(MODELS[:1] if args.quick and not args.only else MODELS, args.only)
    cluster = args.cluster
    if cluster is None:
        note("calibrating")
        CACHE.mkdir(parents=True, exist_ok=True)
        cluster = str(CACHE / "cpu_mesh.yaml")
        run([*tool("rhino"), "cluster", "calibrate", "--devices", str(args.devices), "-o", cluster], env=KEEP)

    def measure(model: Model) -> dict[str, Any]:
        note(f"{model.name}: planning, compiling and running")
        command = [sys.executable, "-m", "bench._mesh_model", model.name, cluster, "--rounds", str(rounds)]
        options = ["--devices", str(args.devices), *(["--quick"] if args.quick else [])]
        result: dict[str, Any] = json.loads(run([*command, *options], env=KEEP, timeout_s=3600).stdout)
        for name, error in result["failures"].items():
            note(f"{model.name}: {name} failed: {error}")
        return {"case": model.name, **result, "summary": summary(result)}

    results, failures = measure_all(models, measure)
    own = [row for result in results for row in unlike(result["plans"])]
    overall = spearman([r["predicted_s"] for r in own], [r["step_time_s"]["median"] for r in own])
    ratios = [r["summary"]["found_over_best"] for r in results]
    worst = max((ratio for ratio in ratios if ratio is not None), default=None)
    totals = Table(
        "All models",
        ("plans measured", "failed", "found over best expert, worst", "rank correlation"),
        ((str(len(own)), str(sum(len(r["failures"]) for r in results)), _text(worst), _text(overall)),),
    )
    record = {"models": results, "failures": failures, "found_over_best": worst, "spearman": overall}
    publish("cpu_mesh", args, record, [*map(table, results), totals])


if __name__ == "__main__":
    main(body)
