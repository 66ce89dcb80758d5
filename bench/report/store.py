"""The results that are kept: a file of bench/results for each bench, and in it one run for each of its parts.

Owns the form of those files, and which commit a run is of. Measures nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench._common import ROOT, BenchError

FOLDER = ROOT / "bench" / "results"
SCHEMA = 1
# What numbers depend on. A commit that changes nothing of it, such as one of texts or of results, ages no result.
MEASURED = (
    "python", "examples", "bench", "pyproject.toml",
    ":(exclude)bench/report", ":(exclude)bench/results", ":(exclude)bench/differential", ":(exclude)*.md",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Commit:
    """The last commit that changed what is measured: its hash, when it was made (ISO, UTC), what is not committed."""

    hash: str
    date: str
    dirty: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One part of a bench, measured once.

    Attributes:
      commit, committed, dirty: as of `Commit`.
      date: when it began (ISO, UTC).
      command: what was run, from `python` on.
      wall_s, cpu_s: of the process and its children, from start to end.
      machine: as `bench._common.machine` gives it, with the load at the end.
      results: what the bench says, less what nobody reads.
    """

    part: str
    commit: str
    committed: str
    dirty: bool
    date: str
    command: tuple[str, ...]
    wall_s: float
    cpu_s: float
    machine: Mapping[str, Any]
    results: Mapping[str, Any]


def current(root: Path = ROOT) -> Commit:
    """The commit that a run of now is of. Raises BenchError where there is no git checkout."""
    last = _git(root, "log", "-1", "--format=%H %cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--", *MEASURED).split()
    if len(last) != 2:
        raise BenchError(f"{root}: no commit has any of what is measured")
    return Commit(last[0], last[1], bool(_git(root, "status", "--porcelain", "--", *MEASURED)))


def _git(root: Path, *arguments: str) -> str:
    env = {**os.environ, "TZ": "UTC"}
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, env=env)
    except OSError as error:
        raise BenchError(f"git: {error.strerror}; results are kept with the commit that they are of") from None
    if done.returncode != 0:
        raise BenchError(f"git: {done.stderr.strip()}; results are kept with the commit that they are of")
    return done.stdout.strip()


def without(data: Any, keys: frozenset[str]) -> Any:
    """A copy of JSON data that has none of these keys at any depth."""
    if isinstance(data, dict):
        return {key: without(value, keys) for key, value in data.items() if key not in keys}
    return [without(item, keys) for item in data] if isinstance(data, list) else data


def path_of(bench: str, folder: Path = FOLDER) -> Path:
    """Where the runs of a bench are kept."""
    return folder / f"{bench}.json"


def load(bench: str, folder: Path = FOLDER) -> dict[str, Run]:
    """The runs of a bench by part; none where it was never run. Raises BenchError for a file of another form."""
    path = path_of(bench, folder)
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA or data["bench"] != bench:
            raise ValueError(f"it is schema {data['schema']} of {data['bench']}")
        runs = [Run(part, **{**facts, "command": tuple(facts["command"])}) for part, facts in data["runs"].items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"{path}: not schema {SCHEMA} of {bench} ({type(error).__name__}: {error}); "
            f"delete it and run python -m bench.report --only {bench}"
        ) from None
    return {run.part: run for run in runs}


def save(bench: str, runs: Iterable[Run], folder: Path = FOLDER) -> None:
    """Write the runs of a bench, a line each, in one step: who is interrupted has the old file or the new one."""
    lines = []
    for run in runs:
        facts = {name: getattr(run, name) for name in Run.__slots__ if name != "part"}
        lines.append(f"{json.dumps(run.part)}: {json.dumps(facts, separators=(',', ':'), allow_nan=False)}")
    head = f'{{"schema": {SCHEMA}, "bench": {json.dumps(bench)}, "runs": {{'
    path = path_of(bench, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(head + "\n" + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    draft.rename(path)


def slug(text: str) -> str:
    """A text as part of a figure's name: what is neither a letter, a digit nor one of `.@:+_-` becomes a hyphen."""
    return re.sub(r"[^\w.@:+-]+", "-", text).strip("-")
