"""Pipelines found for models too large for one host, against published and hand-written ones under the same costs.

    python -m bench.joint_search [--only TEXT ...] [--level O1|O2] [--compile] [--no-experts] [--quick] [--json FILE|-]

For each model: what the joint search finds on 64 V100s (p3.16xlarge:8), how long it takes, what the published shape
(16 stages of 4 devices) and Megatron-LM's grid of equal stages, tensor and data parallelism are predicted to take, each
with its best number of micro-batches, and with --compile what XLA needs. Inputs are in float16, for V100s have no fast
bfloat16.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench._common import CACHE, Table, gib, main, measure_and_publish, note, parser, run, select
from bench._quality_cases import Case, Model, module

FOLDER = CACHE / "joint"
_F16 = ("--platform", "cuda", "--set", "dtype=float16")
_LOOP = ("--scan", "--remat")
_V100S = "p3.16xlarge:8"
CASES: tuple[Case, ...] = (
    Case(Model("gpt", "39b", 1024, (*_LOOP, *_F16)), _V100S),
    # Published with Adafactor: 16 bytes of each parameter for Adam are more than 64 V100s have.
    Case(Model("moe", "70b", 1024, (*_LOOP, *_F16, "--set", "optimizer=adafactor")), _V100S),
    Case(Model("wide_resnet", "13b", 1536, _LOOP), _V100S),
)
# Batch normalisation takes its statistics from each micro-batch, as in published pipelines.
STATISTICS = {"wide_resnet": "micro-batch"}
QUICK: tuple[Case, ...] = (Case(Model("gpt", "2.6b", 1024, (*_LOOP, *_F16)), "p3.16xlarge:1"),)


def part(name: str, file: Path, case: Case, level: str, out: Path) -> dict[str, Any]:
    """One part of a case, in a process of its own."""
    note(f"{case.name}: {name}")
    command: list[str | Path] = [
        sys.executable, "-m", "bench._joint_plan", name, file, case.cluster, level, out,
        STATISTICS.get(case.model.module, "batch"),
    ]  # fmt: skip
    run(command, env={"JAX_PLATFORMS": "cpu"}, timeout_s=3600)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def measure(case: Case, level: str, with_experts: bool, with_xla: bool) -> dict[str, Any]:
    """Everything about one case."""
    file = module(case.model)
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {
        kind: FOLDER / f"{file.stem}-{level}.{kind}"
        for kind in ("search.json", "search.mlir", "experts.json", "xla.json")
    }
    found = part("search", file, case, level, files["search.json"])
    row: dict[str, Any] = {"case": case.name, "level": level, "found": found}
    if "error" not in found:
        if with_experts:
            row["experts"] = part("experts", file, case, level, files["experts.json"])
        if with_xla:
            row["xla"] = part("compile", files["search.mlir"], case, level, files["xla.json"])
    return row


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Found plans, and what they are compared with."""
    plans, others, refused = [], [], []
    for row in rows:
        found = row["found"]
        if "error" in found:
            refused.append((row["case"], row["level"], found["error"]))
            continue
        xla = row.get("xla", {})
        mesh = "x".join(map(str, found["mesh"]))
        measured = gib(xla["peak_bytes"]) if "peak_bytes" in xla else ""
        plans.append(
            (
                row["case"], row["level"], found["plan"], mesh, f"{found['step_time_s']:.2f}", f"{found['wall_s']:.0f}",
                f"{found['cpu_s']:.0f}", gib(found["peak_bytes"]), measured,
            )
        )  # fmt: skip
        for title, key in (("16 stages of 4", "published"), ("Megatron-LM 3-D", "megatron_3d")):
            other = row.get("experts", {}).get(key)
            if other is not None and other["step_time_s"] is not None:
                slower = other["step_time_s"] / found["step_time_s"] - 1
                others.append(
                    (
                        row["case"], title, other["plan"], f"{other['step_time_s']:.2f}", f"{slower:+.1%}",
                        gib(other["peak_bytes"]), "yes" if other["fits"] else "no",
                    )
                )  # fmt: skip
    made = [
        Table(
            "Found", ("model", "level", "plan", "mesh", "step s", "wall s", "CPU s", "GiB", "XLA's GiB"), tuple(plans)
        ),
        Table("By hand", ("model", "rule", "plan", "step s", "against found", "GiB", "fits"), tuple(others)),
    ]
    if refused:
        made.append(Table("No pipeline", ("model", "level", "why"), tuple(refused)))
    return [table for table in made if table.rows]


def body() -> None:
    """Measure and print."""
    p = parser("bench.joint_search", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases that contain one of these")
    p.add_argument("--level", choices=("O1", "O2"), default="O1", help="search effort (default: O1)")
    p.add_argument("--compile", action="store_true", help="compile what is found for V100s, which need not be here")
    p.add_argument("--no-experts", dest="experts", action="store_false", help="only what the search finds")
    args = p.parse_args()
    cases = select(QUICK if args.quick else CASES, args.only)
    measure_and_publish(
        "joint_search", args, cases, lambda case: measure(case, args.level, args.experts, args.compile), tables
    )


if __name__ == "__main__":
    main(body)
