"""The solver of choices on instances of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism.

    python -m bench.iopddl FILE.json.gz... [--seconds S] [--scores FILE] [--json FILE|-]

For each instance: the cost of what is found in `--seconds`, the bound that is proved, and the most memory in use; cost
and memory are computed here from the file's own numbers. With --scores, also the ratios to the best team's cost and to
XLA's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench._common import BenchError, Table, main, note


class WrongAnswer(Exception):
    """An answer that is none for its file."""


def evaluate(path: Path, choices: Sequence[int]) -> tuple[int, int, int | None]:
    """Cost, peak of memory and its limit of an answer, in whole numbers from the file itself.

    Raises:
      WrongAnswer: it has not one choice per node, or a choice that is not there.
    """
    data = path.read_bytes()
    problem = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)["problem"]
    nodes, edges = problem["nodes"], problem.get("edges") or {"nodes": [], "costs": []}
    if len(choices) != len(nodes["costs"]):
        raise WrongAnswer(f"{len(choices)} choices for {len(nodes['costs'])} nodes")
    for number, (choice, costs) in enumerate(zip(choices, nodes["costs"], strict=True)):
        if not 0 <= choice < len(costs):
            raise WrongAnswer(f"node {number} has {len(costs)} choices, none is {choice}")
    cost = sum(costs[choice] for costs, choice in zip(nodes["costs"], choices, strict=True))
    for (left, right), table in zip(edges["nodes"], edges["costs"], strict=True):
        cost += table[choices[left] * len(nodes["costs"][right]) + choices[right]]
    changes: dict[int, int] = {}
    for (start, end), usages, choice in zip(nodes["intervals"], nodes.get("usages") or [], choices, strict=False):
        if start < end and usages:
            changes[start] = changes.get(start, 0) + usages[choice]
            changes[end] = changes.get(end, 0) - usages[choice]
    peak = used = 0
    for at in sorted(changes):
        used += changes[at]
        peak = max(peak, used)
    return cost, peak, problem.get("usage_limit")


def measure(path: Path, seconds: float) -> dict[str, Any]:
    """One instance: solved, and what the answer is worth by its file."""
    from rhino.deadline import NEVER
    from rhino.solver.contest import read_contest
    from rhino.solver.solve import Effort, solve

    begun = time.monotonic()
    # Reading, reducing and the last step of HiGHS are part of the time.
    deadline = NEVER.sooner(seconds * 0.97)
    answer = solve(read_contest(path), Effort(deadline=deadline))
    took = time.monotonic() - begun
    cost, peak, limit = evaluate(path, answer.choices)
    return {
        "instance": path.name.split(".")[0], "cost": cost, "bound": answer.bound, "gap": answer.gap,
        "status": answer.status, "usage": peak, "usage_limit": limit, "usage_ok": limit is None or peak <= limit,
        "seconds": round(took, 2),
    }  # fmt: skip


def compared(row: dict[str, Any], scores: dict[str, Any]) -> dict[str, Any]:
    """A row with what its cost is of the best team's and of XLA's, where there are such scores."""
    known = scores.get(row["instance"], {})
    ratios = {f"to_{name}": row["cost"] / known[name] for name in ("best", "xla") if known.get(name)}
    return row | ratios


def table(rows: list[dict[str, Any]]) -> Table:
    """What is printed."""
    names = ("instance", "cost", "bound", "gap", "usage_ok", "seconds", "to_best", "to_xla")

    def text(value: object) -> str:
        if isinstance(value, float):
            return f"{value:.4f}" if value < 10 else f"{value:.10g}"
        return "-" if value is None else str(value)

    return Table(
        "Contest on intra-operator parallelism", names, tuple(tuple(text(row.get(n)) for n in names) for row in rows)
    )


def run_bench(arguments: Sequence[str] | None = None) -> None:
    """The command line.

    Raises:
      BenchError: an answer does not fit in memory; all rows are written before.
    """
    parser = argparse.ArgumentParser(prog="bench.iopddl", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=300.0, help="per instance, reading included")
    parser.add_argument("--scores", type=Path, help="known scores: {instance: {best, xla}}")
    parser.add_argument("--json", metavar="FILE", help="where rows go as JSON; - for standard output")
    given = parser.parse_args(arguments)
    scores = json.loads(given.scores.read_text()) if given.scores else {}
    rows = []
    for path in given.files:
        note(f"{path.name}: {given.seconds:g} s")
        rows.append(compared(measure(path, given.seconds), scores))
        note(json.dumps(rows[-1]))
        if given.json and given.json != "-":
            Path(given.json).write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1) if given.json == "-" else table(rows))
    misfits = [row["instance"] for row in rows if not row["usage_ok"]]
    if misfits:
        raise BenchError(f"no answer that fits in memory was found for {', '.join(misfits)}")


if __name__ == "__main__":
    main(run_bench)
