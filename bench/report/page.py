"""The page docs/results.md, made of what is kept alone: the same results give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from bench._common import ROOT
from bench.report import sections_plans as plans
from bench.report import sections_runs as runs
from bench.report.benches import benches
from bench.report.store import FOLDER, Run, load
from bench.report.tables import NONE, Kept, ResultTable, Row, Section

PAGE = ROOT / "docs" / "results.md"
_SECTIONS = (
    plans.search_time, plans.cost_fidelity, plans.plan_quality, plans.by_hand, plans.joint_search, plans.stages,
    plans.without, plans.scanned, plans.kernels, plans.overlap, plans.timeline, runs.published_runs,
    runs.device_model, runs.cpu_mesh, runs.cpu_hosts, runs.train_cpu, runs.pipeline, runs.pipeline_multihost,
    runs.resharding, runs.startup,
)  # fmt: skip
_SHORT = 10
_LISTED = 8  # cases that were not measured, by name; of more the number
_HEAD = """# Results

<!-- Written by `python -m bench.report --write` from bench/results; edits are lost. -->

What the benches of this repository measured, each with the commit that it measured. `python -m bench.report` measures
everything again and writes this page, `--only NAME` a part of it. What is predicted or compiled depends on the commit
alone; times that a clock measured are the machine's. **Programs for GPUs are compiled, not run, but for the [steps on
a GPU](#steps-on-a-gpu).**
"""


def kept(folder: Path = FOLDER) -> Kept:
    """All that is kept. Raises BenchError for files that cannot be read."""
    known = benches()
    return Kept(known, {bench.name: load(bench.name, folder) for bench in known})


def sections(results: Kept) -> tuple[Section, ...]:
    """All sections, in the order of the page."""
    return tuple(make(results) for make in _SECTIONS)


def figures(results: Kept) -> dict[str, str]:
    """Every figure that a text may quote, by name."""
    return {name: text for section in sections(results) for name, text in section.figures().items()}


def render(results: Kept) -> str:
    """The page's text."""
    shown = [run for section in sections(results) for name in section.benches for _, run in results.of(name)]
    newest = max(((run.committed, run.commit) for run in shown), default=("", ""))[1]
    lines = [_HEAD, *_machines(shown)]
    missing = []
    for section in sections(results):
        own = [run for name in section.benches for _, run in results.of(name)]
        absent = [part.label for name in section.benches for part in results.missing(name)]
        if not own:
            missing.append(section)
            continue
        lines += [f"## {section.title}", "", section.says, ""]
        for table in section.tables:
            lines += _table(table, newest)
        lines += [f"- {fact.says}: {fact.text}" for fact in section.facts] + [""] * bool(section.facts)
        if absent:
            listed = (
                "; ".join(absent)
                if len(absent) <= _LISTED
                else f"{len(absent)} cases (`python -m bench.report --list`)"
            )
            lines += [f"Not measured: {listed}.", ""]
        lines += [_source(section, own, newest), ""]
    if missing:
        lines += ["## Not measured", "", "Of these nothing is kept:", ""]
        lines += [f"- {section.title}: `python -m bench.report --only {section.name}`" for section in missing] + [""]
    return "\n".join(lines)


def _machines(shown: Sequence[Run]) -> list[str]:
    """What the runs were made on, a line for each machine and set of versions."""
    found: dict[str, list[Run]] = {}
    for run in shown:
        facts, versions = run.machine, run.machine["versions"]
        name = (
            f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_bytes'] / 2**30:.0f} GiB, "
            f"Python {facts['python']}, jax {versions['jax']}, jaxlib {versions['jaxlib']}, HiGHS {versions['highspy']}"
        )
        found.setdefault(name, []).append(run)
    lines = []
    for name, own in found.items():
        load = max(run.machine["load_1min"] for run in own)
        days = sorted({run.date[:10] for run in own})
        text = f"Measured on {name}; {' to '.join(dict.fromkeys((days[0], days[-1])))}."
        if load > 1.5 * own[0].machine["cores"]:
            text += (
                f" Other work shared the cores (load average up to {load:.0f}): wall-clock seconds say little more "
                "than their order of magnitude."
            )
        lines += [text, ""]
    return lines


def _table(table: ResultTable, newest: str) -> list[str]:
    """A table in Markdown; a column says of which commit a row is where some row is not of the newest."""
    if not table.rows:
        return []
    notes = [_age(row, newest) for row in table.rows]
    aged = any(notes)
    heads = [table.rows_are, *(head for _, head in table.columns), *["commit"] * aged]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row, note in zip(table.rows, notes, strict=True):
        lines.append(_line([row.label, *row.cells, *[note or f"`{newest[:_SHORT]}`"] * aged]))
    return [*lines, ""]


def _age(row: Row, newest: str) -> str:
    """Which older commits, or uncommitted changes, a row is of."""
    said = [
        f"`{run.commit[:_SHORT]}`{', older' if run.commit != newest else ''}{', changed' if run.dirty else ''}"
        for run in row.runs
        if run.commit != newest or run.dirty
    ]
    return "; ".join(dict.fromkeys(said))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') or NONE for cell in cells)} |"


def _source(section: Section, own: Sequence[Run], newest: str) -> str:
    """How to measure a section again, and of which commits it is."""
    said = []
    for (commit, dirty), group in groupby(sorted(own, key=_made), key=lambda run: (run.commit, run.dirty)):
        age = "" if commit == newest else ", an older commit"
        changed = ", with changes that were not committed" if dirty else ""
        days = sorted({run.date[:10] for run in group})
        said.append(f"commit `{commit[:_SHORT]}`{age}{changed}, {' to '.join(dict.fromkeys((days[0], days[-1])))}")
    commands = " and ".join(f"`python -m bench.report --only {name}`" for name in section.benches)
    return f"{commands}; {'; '.join(said)}."


def _made(run: Run) -> tuple[str, str, bool]:
    return run.committed, run.commit, run.dirty
