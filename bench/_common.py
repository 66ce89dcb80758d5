"""What every benchmark shares: options, timed processes, interleaved rounds, tables, and the JSON record.

Owns how things are measured and printed; knows nothing of what is measured. Imports neither jax nor MLIR: the peak
memory that Linux reports of a child is at least what its parent held when starting it, so the parent must stay small.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "out" / "bench"
SCHEMA = 1
_DISTRIBUTIONS = ("jax", "jaxlib", "highspy", "numpy", "flax", "optax", "jax-cuda13-plugin")


class BenchError(Exception):
    """A measured process failed; the text says which one and what it printed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A process that ended well: wall seconds, CPU seconds, the most memory it held (bytes), and what it printed."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of what was predicted: the median, the 90th percentile, and of how many."""

    median: float
    p90: float
    count: int

    @classmethod
    def of(cls, errors: Sequence[float]) -> Errors:
        """Those of a list, which must not be empty."""
        ordered = sorted(errors)
        return cls(statistics.median(ordered), ordered[round(0.9 * (len(ordered) - 1))], len(ordered))

    def __str__(self) -> str:
        return f"{self.median:.1%} / {self.p90:.1%}"


class Named(Protocol):
    """A case of a benchmark."""

    @property
    def name(self) -> str:
        """Short and unique among the cases."""


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of texts; the first column is left-aligned, the others right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        lines = (self.columns, *self.rows)
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        text = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join([self.title, "-" * len(self.title), *(line.rstrip() for line in text)])


def parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark: --json and --quick."""
    summary = (doc or "").strip().splitlines()[0]
    p = argparse.ArgumentParser(prog=f"python -m {module}", description=summary)
    p.add_argument("--json", metavar="FILE", help="write the record as JSON; - prints it in place of the tables")
    p.add_argument("--quick", action="store_true", help="fewer rounds and smaller inputs, to see that it works")
    return p


def run(argv: Sequence[str | Path], env: Mapping[str, str] | None = None, timeout_s: float = 1800.0) -> Ran:
    """Run a process to its end and measure it.

    Raises:
      BenchError: it ended with another code than 0, or did not end in time.
    """
    command = [str(part) for part in argv]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT, env={**os.environ, **(env or {})})
        status, usage = _wait(process, start + timeout_s)
        wall_s = time.perf_counter() - start
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if status is None:
        raise BenchError(f"{' '.join(command)}: not done after {timeout_s:.0f} s")
    if status != 0:
        raise BenchError(f"{' '.join(command)}: exit code {status}\n{texts[1][-2000:] or texts[0][-2000:]}")
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS and in KiB on Linux
    return Ran(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit, *texts)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> tuple[int | None, Any]:
    """Exit code (None if it had to be killed) and resource usage of this one child, which only wait4 gives."""
    pause_s = 0.0002
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)  # subprocess must not wait for it again
            return process.returncode, usage
        if time.perf_counter() > deadline:
            process.kill()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            return None, usage
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 0.02)


def tool(name: str) -> list[str]:
    """The command of an entry point (`rhino`, `rhino-opt`), as installed beside this Python."""
    script = Path(sys.executable).with_name(name)
    if script.is_file():
        return [str(script)]
    module = {"rhino": "rhino.cli.main", "rhino-opt": "rhino.cli.opt"}[name]
    return [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"]


def interleave(
    cases: Mapping[str, Callable[[], float]], rounds: int, progress: Callable[[str], None] = lambda text: None
) -> dict[str, list[float]]:
    """Call every case once per round, so that a change in the machine's speed meets all cases alike.

    The order rotates from round to round; each case returns what it measured.
    """
    found: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    for index in range(rounds):
        progress(f"round {index + 1} of {rounds}")
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            found[name].append(cases[name]())
    return found


def select(cases: Sequence[Named], only: Sequence[str] | None) -> list[Any]:
    """The cases whose name contains one of the texts, or all; a text that is a whole name means that case alone.

    Raises:
      BenchError: no name contains any of them; it lists the names.
    """
    names = {case.name for case in cases}

    def asked(name: str, text: str) -> bool:
        return name == text if text in names else text in name

    chosen = [case for case in cases if not only or any(asked(case.name, text) for text in only)]
    if not chosen:
        listed = ", ".join(case.name for case in cases)
        raise BenchError(f"no case contains {' or '.join(only or ())}; there are {listed}")
    return chosen


def measure_all(
    cases: Sequence[Named], measure: Callable[[Any], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The results of the cases that can be measured, and the errors of the others: a failure does not lose results."""
    results, failures = [], []
    for case in cases:
        try:
            results.append(measure(case))
        except BenchError as error:
            note(f"{case.name} failed: {error}")
            failures.append({"case": case.name, "error": str(error)})
    return results, failures


def measure_and_publish(
    name: str,
    args: argparse.Namespace,
    cases: Sequence[Named],
    measure: Callable[[Any], dict[str, Any]],
    tables: Callable[[list[dict[str, Any]]], Sequence[Table]],
) -> None:
    """Measure the cases and publish them as "cases", with their tables.

    Raises:
      BenchError: some could not be measured; the others are published.
    """
    results, failures = measure_all(cases, measure)
    publish(name, args, {"cases": results, "failures": failures}, tables(results) if results else [])
    if failures:
        raise BenchError(f"{len(failures)} of {len(cases)} cases failed: {', '.join(f['case'] for f in failures)}")


def check_losses(losses: Mapping[str, Sequence[float]], expected: Sequence[float], of: str, tolerance: float) -> None:
    """That all train the same model, by what the first losses are.

    Args:
      losses: of each step, by what trained.
      expected, of: losses of the first steps, and whose they are ("on one device").
      tolerance: relative.

    Raises:
      BenchError: one is another; it names the first.
    """
    for name, found in losses.items():
        for index, (one, other) in enumerate(zip(found, expected, strict=False)):
            if abs(one - other) > tolerance * abs(other):
                raise BenchError(f"{name}: the loss of step {index} is {one}, and {of} {other}")


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Median, smallest and largest of the samples, and how many there are."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "rounds": len(samples)}


def note(text: str) -> None:
    """Say on stderr what is going on; stdout is for results."""
    print(f"[bench] {text}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What the numbers depend on: processor, cores, memory, load, and versions."""
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1min": os.getloadavg()[0],
        "os": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = next((line for line in text.splitlines() if line.startswith("model name")), "")
    return found.partition(":")[2].strip() or platform.machine()


def publish(name: str, args: argparse.Namespace, results: Mapping[str, Any], tables: Sequence[Table]) -> None:
    """Print the tables, and write the record where --json says."""
    facts = machine()
    record = {
        "schema": SCHEMA,
        "bench": name,
        "command": ["python", "-m", f"bench.{name}", *sys.argv[1:]],
        "quick": args.quick,
        "machine": facts,
        "results": results,
    }
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
        return
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(text, encoding="utf-8")
    versions = ", ".join(f"{key} {value}" for key, value in facts["versions"].items() if value)
    print(
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load_1min']:.1f}; Python {facts['python']}, {versions}\n"
    )
    print("\n\n".join(map(str, tables)))


def main(body: Callable[[], None]) -> None:
    """Run a benchmark; a failed process is one message and exit code 1, not a traceback."""
    try:
        body()
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def gib(count: float) -> str:
    """Bytes as GiB."""
    return f"{count / 2**30:.2f}"


def mib(count: float) -> str:
    """Bytes as MiB."""
    return f"{count / 2**20:.0f}"
