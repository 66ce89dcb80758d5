"""Real steps on one GPU of this machine: time, kernels and memory, predicted and measured.

    python -m bench.gpu [--only CASE ...] [--calibrate] [--keep FOLDER] [--seconds S] [--quick] [--json FILE|-]

Each example's step is planned for one GPU by `rhino.parallelize`, compiled and run there. Compared are the step times
that the search predicts, that the timeline of XLA's program says, and that were measured; seconds by kind of kernel;
and the peak of memory. Baseline of the same run: the datasheet's roofline. Without a GPU it says so.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench._common import BenchError, Table, gib, main, measure_and_publish, parser, run, select, tool
from bench._device_steps import JudgedStep, table
from bench._gpu_cases import CASES, QUICK, Case

Row = dict[str, Any]
# As many processes trace and plan while another has the GPU.
AHEAD = 3
# What a process that runs training steps has of the GPU, the contexts of the others beside it.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}


def gpu() -> str:
    """The kind of this machine's first GPU, "" without one; asked in a process of its own."""
    code = "import jax; d = jax.devices()[0]; print(d.device_kind if d.platform == 'gpu' else '')"
    return run([sys.executable, "-c", code]).stdout.strip()


def measured(case: Case, folder: Path, keep: str | None, deadline: float) -> Row | BenchError:
    """What `bench._gpu_step` finds of a case, or why it does not."""
    asked, result = folder / f"{case.name}.case.json", folder / f"{case.name}.json"
    asked.write_text(json.dumps(asdict(case)), encoding="utf-8")
    command: list[str | Path] = [sys.executable, "-m", "bench._gpu_step", asked, result, folder / "lock"]
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        return BenchError(f"{case.name}: not begun within --seconds")
    try:
        run([*command, *([keep] if keep else [])], env={**ENVIRONMENT, **os.environ}, timeout_s=left_s)
    except BenchError as error:
        return error
    row: Row = json.loads(result.read_text(encoding="utf-8"))
    return row


def tables(rows: list[Row]) -> list[Table]:
    """Steps, predicted over measured, and where the rest of a step and of its memory is."""
    rest = Table(
        "beside them",
        ("step", "kernels over step", "without graphs ms", "kernels", "peak GiB", "by XLA", "compile s"),
        tuple(
            (
                row["name"],
                f"{row['kernels_s'] / row['measured_s']:.2f}",
                f"{1e3 * row['apart_s']:.2f}",
                f"{row['kernels']:.0f}",
                gib(row["peak_bytes"]),
                gib(row["xla_peak_bytes"]),
                f"{row['compile_s']:.0f}",
            )
            for row in rows
        ),
    )
    names = [f.name for f in fields(JudgedStep)]
    return [table([JudgedStep(**{name: row[name] for name in names}) for row in rows]), rest]


def calibrated(folder: Path) -> str:
    """What `rhino cluster calibrate` finds here."""
    found = folder / "calibrated.yaml"
    run([*tool("rhino"), "cluster", "calibrate", "-o", found])
    return found.read_text(encoding="utf-8")


def body() -> None:
    """Measure the cases that were asked for."""
    p = parser("bench.gpu", __doc__)
    p.add_argument("--only", nargs="+", metavar="CASE", help="cases whose names contain one of these; default all")
    p.add_argument("--calibrate", action="store_true", help="run `rhino cluster calibrate` first, and print its file")
    p.add_argument("--keep", metavar="FOLDER", help="keep programs and kernels there, as bench/data/gpu_steps has them")
    p.add_argument("--seconds", type=float, default=1800.0, metavar="S", help="stop what runs then (default: 1800)")
    args = p.parse_args()
    cases = select(QUICK if args.quick else CASES, args.only)
    if not gpu():
        raise BenchError("no GPU: jax has none on this machine")
    deadline = time.monotonic() + args.seconds
    with TemporaryDirectory() as name, ThreadPoolExecutor(AHEAD) as pool:
        folder = Path(name)
        if args.calibrate:
            print(calibrated(folder))
        running = {case.name: pool.submit(measured, case, folder, args.keep, deadline) for case in cases}

        def outcome(case: Case) -> Row:
            row = running[case.name].result()
            if isinstance(row, BenchError):
                raise row
            return row

        measure_and_publish("gpu", args, cases, outcome, tables)


if __name__ == "__main__":
    main(body)
