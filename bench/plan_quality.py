"""Found plans against the plans of experts, on every model and cluster, by predicted time and by what XLA compiles.

    python -m bench.plan_quality [--full] [--only TEXT ...] [--clusters C ...] [--compile none|found|best|all]
                                 [--jobs N] [--quick] [--json FILE|-]

For each model x cluster the search (O1, and O2 where there is one) and every expert of `rhino.experts` plan the same
module; plans are compiled for the cluster's GPUs, which need not be here. Everything is kept in out/bench/quality by
digest of what it depends on: a run that was stopped goes on where it was, and only what changed is done again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench._common import BenchError, main, note, parser, publish, run, select, tool
from bench._quality_cases import CLUSTERS, FOLDER, FULL, QUICK, STANDARD, Case, digest_of, module
from bench._quality_tables import LEVELS, fidelity, judge, summary, tables, time_of
from rhino.experts import names

# What a plan depends on, and what its executable depends on besides the annotated module.
_PLANNING = ("python/rhino/program", "python/rhino/machine", "python/rhino/sharding", "python/rhino/experts",
             "python/rhino/passes", "python/rhino/dialect", "python/rhino/ir", "python/rhino/solver")  # fmt: skip
_COMPILING = ("python/rhino/compile", "python/rhino/machine")
_NAMES = (*LEVELS, *names())
Row = dict[str, Any]


def plan_files(case: Case, source: Path, sources: str) -> dict[str, Path]:
    """Where the plans of a case are kept, by name."""
    text = hashlib.sha256(source.read_bytes()).hexdigest()
    found = {}
    for name in _NAMES:
        key = hashlib.sha256("\0".join((text, case.cluster, name, sources)).encode()).hexdigest()[:12]
        found[name] = FOLDER / f"{case.model.name}-{case.cluster.replace(':', 'x')}-{name}-{key}.json"
    return found


def make_plans(case: Case, timeout_s: float) -> Row:
    """Every plan of a case, made unless it is there; those that could not be made say why."""
    source = module(case.model)
    files = plan_files(case, source, digest_of(*_PLANNING))
    missing = {name: path for name, path in files.items() if not path.exists()}
    error = ""
    if missing:
        note(f"{case.name}: planning {', '.join(missing)}")
        entries = [f"{name}={path}" for name, path in missing.items()]
        try:
            run([sys.executable, "-m", "bench._quality_plan", source, case.cluster, *entries], timeout_s=timeout_s)
        except BenchError as failure:
            error = str(failure).strip().splitlines()[-1]
            note(f"{case.name}: {error}")
    plans = [json.loads(path.read_text(encoding="utf-8")) for path in files.values() if path.exists()]
    return {"case": case.name, "plans": plans, "error": error}


@dataclass(frozen=True, slots=True)
class Compiling:
    """How plans are compiled: a digest of the sources that do it, and whether collectives are put beside computing."""

    sources: str
    overlap: bool

    def file(self, plan: Row) -> Path:
        """Where what XLA made of a plan is kept."""
        order = "beside" if self.overlap else "plain"
        return FOLDER / f"{Path(plan['module']).stem}-{plan['cluster']['target']}-{order}-{self.sources}.xla.json"


def compile_plan(name: str, plan: Row, how: Compiling, timeout_s: float) -> None:
    """Compile the module of a case's plan, with its timeline, unless that was done; a failure is kept as one."""
    path = how.file(plan)
    if path.exists():
        return
    note(f"{name}: compiling {plan['plan']} for {plan['cluster']['target']}")
    draft = path.with_suffix(".draft")
    command = [*tool("rhino"), "compile", FOLDER / plan["module"], "--target", plan["cluster"]["target"]]
    timeline = ["--timeline", os.devnull, "--cluster", name.partition("@")[2]]
    order = ["--overlap"] if how.overlap else []
    try:
        run([*command, *timeline, *order, "--json", draft, "-q"], env={"JAX_PLATFORMS": "cpu"}, timeout_s=timeout_s)
    except BenchError as failure:
        lines = str(failure).strip().splitlines()
        note(f"{name} {plan['plan']}: {lines[-1]}")
        draft.write_text(json.dumps({"error": lines[-1]}), encoding="utf-8")
    draft.rename(path)


def to_compile(row: Row, which: str) -> list[Row]:
    """The plans of a case that are compiled: those found, the best expert's, or all; found ones first."""
    plans = {p["plan"]: p for p in row["plans"] if "module" in p}
    wanted = [name for name in LEVELS if name in plans and which != "none"]
    experts = [name for name in plans if name not in LEVELS]
    if which == "best" and experts:
        wanted.append(min(experts, key=lambda name: time_of(plans[name]) or 0.0))
    if which == "all":
        wanted += experts
    return [plans[name] for name in wanted]


def each(jobs: int, work: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of some work, in order, `jobs` at a time; each starts processes, so threads are enough."""
    with ThreadPoolExecutor(jobs) as pool:
        return [future.result() for future in [pool.submit(task) for task in work]]


def finish(row: Row, how: Compiling) -> Row:
    """A case with what is known of its plans."""
    for plan in row["plans"]:
        path = how.file(plan) if "module" in plan else None
        if path is not None and path.exists():
            plan["xla"] = json.loads(path.read_text(encoding="utf-8"))
            plan["fidelity"] = fidelity(plan)
    return row | judge({p["plan"]: p for p in row["plans"]})


def _safely(case: Case, work: Callable[[], Row]) -> Row:
    try:
        return work()
    except BenchError as failure:
        note(f"{case.name}: {failure}")
        return {"case": case.name, "plans": [], "error": str(failure).strip().splitlines()[-1]}


def measure(cases: Sequence[Case], args: argparse.Namespace, overlap: bool = False) -> list[Row]:
    """Plan all cases, the small ones first; then compile, the small ones first and found plans before experts'.

    Args:
      overlap: whether collectives are put beside computing, as `rhino.parallelize` has it, or XLA's order is plain.
    """
    compiling = Compiling(digest_of(*_COMPILING), overlap)
    work = [partial(_safely, case, partial(make_plans, case, args.timeout)) for case in cases]
    rows: list[Row] = each(args.jobs, work)
    queue = [(i, row["case"], plan) for row in rows for i, plan in enumerate(to_compile(row, args.compile))]
    queue.sort(key=lambda entry: ((FOLDER / entry[2]["module"]).stat().st_size, entry[0], entry[1]))
    each(args.jobs, [partial(compile_plan, name, plan, compiling, args.timeout) for _, name, plan in queue])
    return [finish(row, compiling) for row in rows]


def options() -> argparse.ArgumentParser:
    """The command line."""
    p = parser("bench.plan_quality", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases (model@cluster) that contain one of these")
    p.add_argument("--clusters", nargs="+", default=CLUSTERS, metavar="C", help=f"default: {' '.join(CLUSTERS)}")
    p.add_argument("--full", action="store_true", help="more sizes of each model")
    p.add_argument(
        "--compile", choices=("none", "found", "best", "all"), default="best",
        help="which plans XLA compiles: found ones, the best expert's too (default), or every expert's",
    )  # fmt: skip
    p.add_argument("--no-compile", dest="compile", action="store_const", const="none", help="as --compile none")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (default: 1)")
    p.add_argument("--timeout", type=float, default=1800, metavar="S", help="seconds a process may take")
    return p


def body() -> None:
    """Measure and print."""
    args = options().parse_args()
    models = QUICK if args.quick else FULL if args.full else STANDARD
    clusters = args.clusters[:1] if args.quick else args.clusters
    cases = select([Case(model, cluster) for model in models for cluster in clusters], args.only)
    rows = measure(cases, args)
    publish("plan_quality", args, {"cases": rows, "summary": summary(rows)}, tables(rows, names()))
    failed = [row["case"] for row in rows if row["error"]]
    if failed:
        raise BenchError(f"{len(failed)} of {len(rows)} cases are incomplete: {', '.join(failed)}")


if __name__ == "__main__":
    main(body)
