"""Runs the parts of benches, each in a process of its own, one after the other, and keeps what they say at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench._common import BenchError, note, run
from bench.report.benches import Bench, Part
from bench.report.store import FOLDER, Commit, Run, load, save, without

_TIMEOUT_S = 12 * 3600.0


def chosen(benches: Sequence[Bench], only: Sequence[str] | None) -> list[tuple[Bench, list[Part]]]:
    """The benches and parts that are asked for: `BENCH`, or `BENCH/TEXT` for the parts that contain a text.

    A text that is the whole name of a part means that part alone.

    Raises:
      BenchError: there is none of such a name; it lists the names.
    """
    if not only:
        return [(bench, list(bench.parts)) for bench in benches]
    wanted: dict[str, list[Part]] = {bench.name: [] for bench in benches}
    for text in only:
        name, _, part = text.partition("/")
        bench = next((bench for bench in benches if bench.name == name), None)
        if bench is None:
            raise BenchError(f"no bench is named {name}; there are {', '.join(wanted)}")
        parts = [p for p in bench.parts if p.name == part] or [p for p in bench.parts if part in p.name]
        if not parts:
            raise BenchError(f"no part of {name} contains {part}; there are {', '.join(p.name for p in bench.parts)}")
        wanted[name] += parts
    return [(b, [p for p in b.parts if p in wanted[b.name]]) for b in benches if wanted[b.name]]


def measure(bench: Bench, part: Part, commit: Commit) -> Run:
    """Run one part. Raises BenchError where it fails, or ends without a record: it was not able to measure here."""
    command = bench.command(part)
    begin = datetime.now(UTC)
    ran = run([sys.executable, *command[1:]], timeout_s=_TIMEOUT_S)
    if not ran.stdout.strip():
        said = ran.stderr.strip().splitlines() or ["nothing"]
        raise BenchError(f"{bench.name}/{part.name}: no record; it says: {said[-1]}")
    record = json.loads(ran.stdout)
    return Run(
        part.name, commit.hash, commit.date, commit.dirty, begin.strftime("%Y-%m-%dT%H:%M:%SZ"), command,
        round(ran.wall_s, 2), round(ran.cpu_s, 2), record["machine"], without(record["results"], bench.unread),
    )  # fmt: skip


def keep(bench: Bench, made: Run, folder: Path = FOLDER) -> None:
    """Put a run in place of the part's last one; runs are kept in the order of the parts."""
    runs = {**load(bench.name, folder), made.part: made}
    known = [part.name for part in bench.parts]
    places = {name: place for place, name in enumerate([*known, *(name for name in runs if name not in known)])}
    save(bench.name, sorted(runs.values(), key=lambda run: places[run.part]), folder)


def measure_all(
    asked: Sequence[tuple[Bench, Sequence[Part]]],
    commit: Callable[[], Commit],
    resume: bool = False,
    folder: Path = FOLDER,
) -> list[str]:
    """Measure parts and keep each at once; the names of those that failed, which are no reason to stop.

    Args:
      commit: called before each part, for somebody may edit meanwhile.
      resume: skip what is kept of this commit and command, unless something was not committed then or is not now.
    """
    failed = []
    for bench, parts in asked:
        for part in parts:
            now, kept = commit(), load(bench.name, folder).get(part.name)
            name = f"{bench.name}/{part.name}"
            same = kept is not None and (kept.commit, kept.command) == (now.hash, bench.command(part))
            if resume and kept is not None and same and not kept.dirty and not now.dirty:
                note(f"{name}: kept, of {kept.date}")
                continue
            note(f"{name}: running")
            try:
                made = measure(bench, part, now)
            except BenchError as error:
                note(f"{name} failed: {error}")
                failed.append(name)
                continue
            keep(bench, made, folder)
            note(f"{name}: {made.wall_s:.0f} s, {made.cpu_s:.0f} s of CPU time")
    return failed
