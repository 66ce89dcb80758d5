"""Training steps of found plans and of experts' over several hosts: predicted, beside measured over real links.

    python -m bench.cpu_hosts [--only gpt@200 ...] [--clusters FOLDER] [--rounds N] [--quick] [--json FILE|-]

Four network namespaces of this machine are hosts with two CPU devices each, joined by links shaped to 200 Mbit/s and to
1 Gbit/s each way. The cluster is what `rhino cluster calibrate` measures of them, as a job of four processes. For each
model the search's plan and every expert's that applies are compiled, as one program over all hosts, and run training
steps in turn; medians count. All plans must train to the same losses.

Needs Linux and root (`ip`, `tc`); says so and ends well where it cannot run.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._common import (
    BenchError,
    Errors,
    Table,
    check_losses,
    interleave,
    main,
    measure_all,
    note,
    parser,
    publish,
    run,
    select,
    spread,
)
from bench._crew import Crew
from bench._namespaces import available, network
from bench._ranks import spearman
from bench.cpu_mesh import FOUND, KEEP, summary, table, unlike

_HOSTS = 4
_MODELS = ("gpt", "moe", "dlrm", "unet")
MBITS = (200, 1000)
# Of the first losses, relative: plans add in different orders, and a router sends a token elsewhere by as little. From
# parameters changed by 1e-6 of themselves the mixture of experts is 4.6e-4 off after three steps, 1.1e-3 after five.
_LOSS, _COMPARED = 1e-3, 4


@dataclass(frozen=True, slots=True)
class Case:
    """A model of `bench._hosts_worker` and the rate of the links."""

    model: str
    mbits: int

    @property
    def name(self) -> str:
        """model@Mbit/s."""
        return f"{self.model}@{self.mbits}"


CASES = tuple(Case(model, mbits) for mbits in MBITS for model in _MODELS)


def calibrated(mbits: int, folder: Path) -> str:
    """The file of the cluster that four hosts are, as measured; one that is there is kept."""
    path = folder / f"hosts-{mbits}.yaml"
    if path.exists():
        return str(path)
    note(f"{mbits} Mbit/s: calibrating")
    with network(_HOSTS, mbits * 1e6) as hosts:
        first = {"model": "", "quick": False, "folder": str(folder)}
        Crew(hosts, "bench._hosts_worker", first, KEEP).ask({"do": "calibrate", "path": str(path)}, 900)
    return str(path)


def measure(case: Case, cluster: str, folder: Path, rounds: int, quick: bool) -> dict[str, Any]:
    """All plans of a case, in interleaved rounds.

    Raises:
      BenchError: a process failed, or plans train to different losses.
    """
    note(f"{case.name}: planning")
    mine = folder / case.name
    mine.mkdir()
    command: list[str | Path] = [sys.executable, "-m", "bench._hosts_plans", case.model, cluster, mine]
    planned: dict[str, Any] = json.loads(
        run([*command, *(["--quick"] if quick else [])], env={"JAX_PLATFORMS": "cpu"}).stdout
    )
    rows: dict[str, dict[str, Any]] = planned["plans"]
    if FOUND not in rows:
        raise BenchError(f"{FOUND}: {planned['declined'][FOUND]}")
    note(f"{case.name}: compiling and running")
    with network(_HOSTS, case.mbits * 1e6) as hosts:
        first = {"model": case.model, "quick": quick, "folder": str(mine)}
        crew = Crew(hosts, "bench._hosts_worker", first, KEEP)
        known: dict[str, str] = {}
        for name, row in rows.items():
            found = crew.ask({"do": "compile", "name": name, "cluster": cluster}, 900)
            if len({each["digest"] for each in found}) > 1:
                raise BenchError(f"{name}: the processes compiled different programs")
            row["same_as"] = known.setdefault(found[0]["digest"], name)
            row["xla_comm_bytes"] = found[0]["xla_comm_bytes"]
            if row["same_as"] == name:
                crew.ask({"do": "begin", "name": name}, 900)
        losses: dict[str, list[float]] = {}

        def step(name: str) -> float:
            ends = crew.ask({"do": "step", "name": name}, 300)
            losses[name] = ends[0]["losses"]
            return float(max(end["end"] for end in ends) - min(end["start"] for end in ends))

        steps = {name: functools.partial(step, name) for name, row in rows.items() if row["same_as"] == name}
        times = interleave(steps, rounds, lambda text: note(f"  {text}"))
    for row in rows.values():
        own = row["same_as"]
        row.update(step_time_s=spread(times[own]), losses=losses[own])
    check_losses(losses, losses[FOUND][:_COMPARED], f"under {FOUND}", _LOSS)
    result = {"case": case.name, **planned}
    return {**result, "summary": {**summary(result), **predicted_well(rows)}}


def predicted_well(rows: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """The median error of predictions over programs, and what is predicted of the found plan over its measured time."""
    off, found = _off(unlike(rows)), rows[FOUND]
    return {
        "median_error": Errors.of(off).median,
        "worst_error": max(off),
        "found_predicted_over_measured": found["predicted_s"] / found["step_time_s"]["median"],
    }


def _off(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [abs(row["predicted_s"] / row["step_time_s"]["median"] - 1) for row in rows]


def totals(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over all cases."""
    own = [row for result in results for row in unlike(result["plans"])]
    off = _off(own)
    ratios = [r["summary"]["found_over_best"] for r in results if r["summary"]["found_over_best"] is not None]
    return {
        "plans": len(own),
        "found_over_best": max(ratios, default=None),
        "median_error": Errors.of(off).median if off else None,
        "p90_error": Errors.of(off).p90 if off else None,
        "spearman": spearman([r["predicted_s"] for r in own], [r["step_time_s"]["median"] for r in own]),
    }


def body() -> None:
    """Measure and print."""
    p = parser("bench.cpu_hosts", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases (model@Mbit/s) that contain one of these")
    p.add_argument(
        "--clusters", type=Path, metavar="FOLDER", help="hosts-MBITS.yaml there are taken, or else put there"
    )
    p.add_argument("--rounds", type=int, help="timed steps of each plan (default: 7; 1 with --quick)")
    args = p.parse_args()
    missing = available()
    if missing:
        note(f"skipped: {missing}")
        return
    rounds = args.rounds or (1 if args.quick else 7)
    cases = select(CASES[:1] if args.quick and not args.only else CASES, args.only)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        kept = args.clusters or folder
        kept.mkdir(parents=True, exist_ok=True)
        clusters = {mbits: calibrated(mbits, kept.resolve()) for mbits in dict.fromkeys(case.mbits for case in cases)}
        results, failures = measure_all(
            cases, lambda case: measure(case, clusters[case.mbits], folder, rounds, args.quick)
        )
        measured = {str(mbits): Path(path).read_text(encoding="utf-8") for mbits, path in clusters.items()}
    found = totals(results)
    lines = tuple((key, "-" if value is None else f"{value:.3g}") for key, value in found.items())
    record = {"cases": results, "failures": failures, "clusters": measured, **found}
    publish("cpu_hosts", args, record, [*map(table, results), Table("All cases", ("what", "value"), lines)])
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main(body)
