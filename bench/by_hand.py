"""What a user can ask for by flags, against what is found without any: no wish may be faster by more than 2 % at O1.

    python -m bench.by_hand [--only TEXT ...] [--level O1|O2] [--wish TEXT ...] [--minutes M] [--quick] [--json FILE|-]

For each model and cluster the step is planned with no flags, then with every mesh of two axes, without recomputation,
with numbers of micro-batches of one program, numbers of stages with and without micro-batches, every schedule of the
fastest of these, and as each expert of `rhino.experts`. All are priced alike; wishes that do not fit, or cannot be, say
why.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench._by_hand_wishes import LATE
from bench._common import CACHE, Table, gib, main, measure_and_publish, note, parser, run, select
from bench._quality_cases import Case, Model, module

_LOOP = ("--scan", "--remat")
_F16 = ("--platform", "cuda", "--set", "dtype=float16")
# How much slower than a wish what is found may be.
TARGETS = {"O1": 0.02, "O2": 0.005}
CASES: tuple[Case, ...] = (
    Case(Model("mlp", "wide"), "p3.16xlarge:8"),
    Case(Model("dlrm", "mlperf"), "dgx-a100:8"),
    Case(Model("lstm", "250m", options=_LOOP), "p3.16xlarge:8"),
    Case(Model("bert", "large", options=_LOOP), "p3.16xlarge:8"),
    Case(Model("moe", "1.3b", options=_LOOP), "dgx-a100:8"),
    Case(Model("vit", "l16", options=_LOOP), "dgx-a100:8"),
    Case(Model("clip", "l14", options=_LOOP), "dgx-a100:8"),
    Case(Model("t5", "3b", options=_LOOP), "dgx-a100:8"),
    Case(Model("wide_resnet", "1b", options=("--scan",)), "p3.16xlarge:8"),
    Case(Model("convnet", "resnet50"), "p3.16xlarge:8"),
    Case(Model("unet", "adm-64", options=("--remat",)), "dgx-a100:8"),
    # At the batches that were published.
    Case(Model("gpt", "1.3b", 1024, _LOOP), "dgx-h100:1"),
    Case(Model("gpt", "1.3b", 1024, _LOOP), "dgx-h100:16"),
    Case(Model("gpt", "6.7b", 1024, _LOOP), "dgx-a100:8"),
    Case(Model("gpt", "39b", 1536, _LOOP), "dgx-h100:16"),
    Case(Model("gpt", "175b", 1536, _LOOP), "dgx-h100:128"),
    Case(Model("llama", "llama2-7b", 1024, _LOOP), "dgx-h100:1"),
    Case(Model("llama", "llama2-70b", 1024, _LOOP), "dgx-h100:16"),
    # Slow links and little memory: what is found is a pipeline in the first two.
    Case(Model("gpt", "6.7b", 1024, (*_LOOP, *_F16)), "p3.16xlarge:8"),
    Case(Model("gpt", "39b", 1024, (*_LOOP, *_F16)), "p3.16xlarge:8"),
    Case(Model("llama", "llama2-7b", 1024, _LOOP), "p3.16xlarge:8"),
)
QUICK: tuple[Case, ...] = (Case(Model("mlp", "tiny"), "dgx-h100:1"),)


def measure(case: Case, level: str, wishes: list[str], minutes: float) -> dict[str, Any]:
    """One case: what is found, and what each wish gives."""
    file = module(case.model)
    out = CACHE / f"by_hand-{file.stem}-{case.cluster.replace(':', 'x')}-{level}.json"
    note(case.name)
    limit_s = 60 * minutes
    run(
        [sys.executable, "-m", "bench._by_hand_wishes", file, case.cluster, level, str(limit_s), out, *wishes],
        env={"JAX_PLATFORMS": "cpu"}, timeout_s=2 * limit_s + 1800,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return {"case": case.name, "level": level, **judge(found, level), **found}


def judge(found: dict[str, Any], level: str) -> dict[str, Any]:
    """By how much the fastest wish is faster than what was found; negative where all are slower."""
    could = [wish for wish in found["wishes"] if wish.get("step_time_s")]
    late = sum(wish.get("why") == LATE for wish in found["wishes"])
    counts = {"wished": len(found["wishes"]), "planned": len(could), "late": late}
    if not could:
        return {"best_wish": None, "faster": None, "kept": True, **counts}
    best = min(could, key=lambda wish: float(wish["step_time_s"]))
    default = found["default"].get("step_time_s")
    faster = default / best["step_time_s"] - 1 if default else None
    kept = faster is not None and faster <= TARGETS[level]
    return {"best_wish": best["wish"], "faster": faster, "kept": kept, **counts}


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """A line for each case, and one for each wish that was faster."""
    lines, better = [], []
    for row in rows:
        default = row["default"]
        step = f"{default['step_time_s']:.4g}" if "step_time_s" in default else "nothing fits"
        could = [wish for wish in row["wishes"] if wish.get("step_time_s")]
        lines.append(
            (
                row["case"], default.get("plan", ""), step, gib(default.get("peak_bytes", 0)),
                f"{default['seconds']:.0f}", f"{len(could)} of {len(row['wishes'])}", row["best_wish"] or "",
                "" if row["faster"] is None else f"{row['faster']:+.1%}", "yes" if row["kept"] else "NO",
            )
        )  # fmt: skip
        for wish in could:
            if "step_time_s" not in default or wish["step_time_s"] < default["step_time_s"] * (1 - 1e-4):
                plan = (row["case"], wish["wish"], wish["plan"], f"{wish['step_time_s']:.4g}", gib(wish["peak_bytes"]))
                better.append(plan)
    columns = ("case", "plan", "step s", "GiB", "search s", "wishes", "fastest wish", "faster by", "kept")
    made = [Table("Found without flags, and the fastest wish", columns, tuple(lines))]
    if better:
        made.append(Table("Faster wishes", ("case", "wish", "plan", "step s", "GiB"), tuple(better)))
    return made


def body() -> None:
    """Measure and print."""
    p = parser("bench.by_hand", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases (model@cluster) that contain one of these")
    p.add_argument("--wish", nargs="+", default=[], metavar="TEXT", help="only wishes that contain one of these")
    p.add_argument("--level", choices=tuple(TARGETS), default="O1", help="search effort (default: O1)")
    p.add_argument(
        "--minutes", type=float, default=30.0, metavar="M", help="of one case, after which no more is planned"
    )
    args = p.parse_args()
    cases = select(QUICK if args.quick else CASES, args.only)
    measure_and_publish("by_hand", args, cases, lambda case: measure(case, args.level, args.wish, args.minutes), tables)


if __name__ == "__main__":
    main(body)
