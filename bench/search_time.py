"""How long `rhino plan` takes from a .mlir file to an annotated one, where the time goes, and how much memory it holds.

    python -m bench.search_time [--only CASE ...] [--rounds N] [--quick] [--json FILE|-]

GPT training steps with every layer unrolled: the 1.3 B model on 8 and 128 GPUs, the same model at other depths, and
175 B with 96 and 12 layers, as a loop over its layers, and at level O2; 39 B and 175 B also without `jax.checkpoint`.
Baseline of the same run: Shardy's propagation alone over the same file, which decides nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench._common import (
    CACHE,
    BenchError,
    Table,
    interleave,
    main,
    measure_and_publish,
    note,
    parser,
    run,
    select,
    spread,
    tool,
)
from bench._inputs import GPT, count_lines, module


@dataclass(frozen=True, slots=True)
class Case:
    """A model and the cluster it is planned for; `memory_gib` 0 is the device's own memory."""

    model: GPT
    cluster: str
    level: str = "O1"
    memory_gib: int = 0

    @property
    def name(self) -> str:
        """Short and unique."""
        more = ("" if self.level == "O1" else f"-{self.level}") + (f"-{self.memory_gib}GiB" if self.memory_gib else "")
        return f"{self.model.name}@{self.cluster}{more}"


CASES: tuple[Case, ...] = (
    Case(GPT("1.3b", 64), "dgx-h100:1"),
    Case(GPT("1.3b", 1024), "dgx-h100:16"),
    Case(GPT("1.3b", 64, layers=12), "dgx-h100:1"),
    Case(GPT("1.3b", 64, layers=48), "dgx-h100:1"),
    Case(GPT("1.3b", 64, layers=96), "dgx-h100:1"),
    Case(GPT("175b", 256, layers=12), "dgx-h100:16"),
    Case(GPT("175b", 256, scan=True), "dgx-h100:16"),
    Case(GPT("175b", 256), "dgx-h100:16"),
    Case(GPT("175b", 256), "dgx-h100:16", "O2"),
    # The step itself computes nothing again: what is, is for the search to find.
    Case(GPT("39b", 1536, remat=False), "dgx-h100:16"),
    Case(GPT("175b", 256, remat=False), "dgx-h100:16"),
    # 12 layers fit and 96 do not, unless told otherwise: these two differ in their depth only.
    Case(GPT("175b", 256, layers=12), "dgx-h100:16", memory_gib=1000),
    Case(GPT("175b", 256), "dgx-h100:16", memory_gib=1000),
)
QUICK: tuple[Case, ...] = (Case(GPT("125m", 8, layers=2), "dgx-h100:1"), Case(GPT("125m", 8, layers=4), "dgx-h100:1"))


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Plan one case `rounds` times, interleaved with propagation alone; the plan must come out the same each time."""
    source = module(case.model)
    planned, record = CACHE / "planned.mlir", CACHE / "planned.json"
    plan = [
        *tool("rhino"),
        "plan",
        source,
        "--cluster",
        case.cluster,
        "--level",
        case.level,
        "-o",
        planned,
        "--json",
        record,
        *(["--memory-limit", f"{case.memory_gib}GiB"] if case.memory_gib else []),
    ]
    propagate = [*tool("rhino-opt"), source, "--sdy-propagation-pipeline", "-o", CACHE / "propagated.mlir"]
    peaks = {"plan": 0, "propagate": 0}
    cpu_s: dict[str, list[float]] = {"plan": [], "propagate": []}
    outputs: set[bytes] = set()

    def once(name: str, command: list[Any]) -> Callable[[], float]:
        def timed() -> float:
            ran = run(command)
            peaks[name] = max(peaks[name], ran.peak_rss_bytes)
            cpu_s[name].append(ran.cpu_s)
            if name == "plan":
                outputs.add(planned.read_bytes())
            return ran.wall_s

        return timed

    cases = {"plan": once("plan", plan), "propagate": once("propagate", propagate)}
    times = interleave(cases, rounds, lambda text: note(f"{case.name}: {text}"))
    if len(outputs) != 1:
        raise BenchError(f"{case.name}: {len(outputs)} different plans in {rounds} runs of the same command")
    data = json.loads(record.read_text(encoding="utf-8"))
    limit = str(case.memory_gib << 30)
    phases = run([sys.executable, "-m", "bench._phases", source, case.cluster, case.level, limit])
    return {
        "case": case.name,
        "cluster": case.cluster,
        "lines": count_lines(source),
        "module_bytes": source.stat().st_size,
        "plan_s": spread(times["plan"]),
        "plan_cpu_s": spread(cpu_s["plan"]),
        "plan_peak_rss_bytes": peaks["plan"],
        "propagate_s": spread(times["propagate"]),
        "propagate_cpu_s": spread(cpu_s["propagate"]),
        "propagate_peak_rss_bytes": peaks["propagate"],
        "mesh": data["mesh"],
        "predicted": data["predicted"],
        "search": data["search"],
        "phases_s": json.loads(phases.stdout),
    }


def tables(results: list[dict[str, Any]]) -> list[Table]:
    """The summary, and one line per phase."""
    rows = tuple(
        (
            r["case"],
            f"{r['lines']:,}",
            f"{r['plan_s']['median']:.2f}",
            f"{r['plan_cpu_s']['median']:.2f}",
            f"{r['plan_peak_rss_bytes'] / 2**20:.0f}",
            f"{r['propagate_s']['median']:.2f}",
            f"{r['propagate_peak_rss_bytes'] / 2**20:.0f}",
            "x".join(str(size) for _, size in r["mesh"]),
        )
        for r in results
    )
    columns = ("case", "lines", "rhino plan s", "CPU s", "peak MiB", "propagation s", "peak MiB", "mesh")
    parts = [r["phases_s"] for r in results]
    names = list(dict.fromkeys(name for part in parts for name in part))
    detail = tuple((name, *(f"{part[name]:.3f}" if name in part else "" for part in parts)) for name in names)
    return [
        Table("From .mlir to annotated .mlir", columns, rows),
        Table("Seconds by phase, one further run each", ("", *(str(i + 1) for i in range(len(results)))), detail),
    ]


def body() -> None:
    """Measure and print."""
    p = parser("bench.search_time", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases whose name contains one of these")
    p.add_argument("--rounds", type=int, help="how often each case is planned (default: 3; 1 with --quick)")
    args = p.parse_args()
    cases = select(QUICK if args.quick else CASES, args.only)
    rounds = args.rounds or (1 if args.quick else 3)
    measure_and_publish("search_time", args, cases, lambda case: measure(case, rounds), tables)


if __name__ == "__main__":
    main(body)
