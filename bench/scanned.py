"""The same model with its layers as one loop and one after the other: are the plans as good, and is the loop's sooner?

    python -m bench.scanned [--only MODEL ...] [--cluster C] [--level O1|O2] [--quick] [--json FILE|-]

Both programs are planned by `rhino plan` in the same run, one after the other. A ratio below 1 means that the
loop's plan is predicted to be the faster one.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from bench._common import CACHE, BenchError, Table, main, measure_all, parser, publish, run, select, tool
from bench._inputs import count_lines
from bench._quality_cases import Model, module

MODELS: tuple[Model, ...] = (
    Model("gpt", "1.3b", options=("--remat",)),
    Model("gpt", "175b", batch=128, options=("--remat",)),
    Model("llama", "llama2-7b", batch=128, options=("--remat",)),
    Model("bert", "large", options=("--remat",)),
    Model("moe", "1.3b", options=("--remat",)),
    Model("vit", "l16", options=("--remat",)),
    Model("clip", "l14", options=("--remat",)),
    Model("t5", "3b", options=("--remat",)),
    Model("wide_resnet", "1b"),
)
QUICK: tuple[Model, ...] = (Model("gpt", "tiny", options=("--remat",)),)
Row = dict[str, Any]


def planned(model: Model, cluster: str, level: str) -> Row:
    """One program: its size, how long `rhino plan` took, and what the plan is predicted to take."""
    source, record = module(model), CACHE / "scanned.json"
    ran = run([*tool("rhino"), "plan", source, "--cluster", cluster, "--level", level, "--json", record, "-q"])
    plan = json.loads(record.read_text(encoding="utf-8"))
    return {
        "lines": count_lines(source),
        "plan_s": ran.wall_s,
        "plan_cpu_s": ran.cpu_s,
        "mesh": plan["mesh"],
        "predicted": plan["predicted"],
    }


def measure(model: Model, cluster: str, level: str) -> Row:
    """Both programs of a model."""
    looped = replace(model, options=("--scan", *model.options))
    return {"case": model.name, "scanned": planned(looped, cluster, level), "unrolled": planned(model, cluster, level)}


def tables(results: list[Row]) -> list[Table]:
    """One line per model."""
    rows = []
    for r in results:
        scanned, unrolled = r["scanned"], r["unrolled"]
        step, other = (part["predicted"]["step_time_s"] for part in (scanned, unrolled))
        rows.append((
            r["case"], f"{scanned['lines']:,}", f"{unrolled['lines']:,}", f"{scanned['plan_s']:.1f}",
            f"{unrolled['plan_s']:.1f}", f"{step * 1e3:.2f}", f"{other * 1e3:.2f}", f"{step / other:.3f}",
        ))  # fmt: skip
    columns = ("model", "lines, loop", "unrolled", "plan s, loop", "unrolled", "step ms, loop", "unrolled", "ratio")
    return [Table("Layers as a loop, and unrolled", columns, tuple(rows))]


def body() -> None:
    """Measure and print."""
    p = parser("bench.scanned", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the models whose name contains one of these")
    p.add_argument("--cluster", default="dgx-h100:16", metavar="C", help="what to plan for (default: dgx-h100:16)")
    p.add_argument("--level", default="O1", choices=("O1", "O2"), help="how hard to search (default: O1)")
    args = p.parse_args()
    models = select(QUICK if args.quick else MODELS, args.only)
    results, failures = measure_all(models, lambda model: measure(model, args.cluster, args.level))
    ratios = [r["scanned"]["predicted"]["step_time_s"] / r["unrolled"]["predicted"]["step_time_s"] for r in results]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    found = {"cluster": args.cluster, "level": args.level, "cases": results, "failures": failures, "ratio": mean}
    publish("scanned", args, found, tables(results) if results else [])
    if failures:
        raise BenchError(f"{len(failures)} of {len(models)} models failed; see above")


if __name__ == "__main__":
    main(body)
