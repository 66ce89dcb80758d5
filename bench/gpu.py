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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench._common import BenchError, Table, gib, main, measure_and_publish, parser, run, select, tool
from bench._device_steps import JudgedStep, table

Row = dict[str, Any]
# As many processes trace and plan while another has the GPU.
AHEAD = 3
# What a process that runs training steps has of the GPU, the contexts of the others beside it.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}


@dataclass(frozen=True, slots=True)
class Case:
    """A preset of examples/models with a batch that one GPU of 80 GB holds, and fields of its configuration changed."""

    name: str
    module: str
    preset: str
    batch: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 2.0


CASES: tuple[Case, ...] = (
    Case("gpt-1.3b", "gpt", "1.3b", 4, {"layers": 8}),
    Case("gpt-350m", "gpt", "350m", 16, {"scan": True, "remat": True}),
    Case("llama2-7b", "llama", "llama2-7b", 2, {"layers": 2, "attention": "cudnn"}),
    Case("llama3-8b", "llama", "llama3-8b", 1, {"layers": 2, "attention": "cudnn", "fused": True}),
    Case("bert-large", "bert", "large", 32),
    Case("t5-base", "t5", "base", 16, {"scan": True}),
    Case("vit-l16", "vit", "l16", 64),
    Case("clip-b16", "clip", "b16", 128, {"scan": True}),
    Case("resnet50", "convnet", "resnet50", 256),
    Case("wide-resnet", "wide_resnet", "250m", 32),
    Case("unet-64", "unet", "adm-64", 32),
    Case("moe-380m", "moe", "380m", 16),
    Case("dlrm-kaggle", "dlrm", "kaggle", 16384),
    Case("lstm-250m", "lstm", "250m", 128),
    Case("mlp-wide", "mlp", "wide", 1024),
    Case("mlp-deep", "mlp", "deep", 4096),
)
QUICK: tuple[Case, ...] = (
    Case("mlp-tiny", "mlp", "tiny", 16, seconds=0.2),
    Case("gpt-tiny", "gpt", "tiny", 8, seconds=0.2),
)


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
    """Steps, predicted over measured, and their kernels."""
    steps = Table(
        "steps on a GPU: predicted by the search over measured",
        ("step", "measured ms", "search", "kernels alone", "peak GiB", "predicted", "XLA"),
        tuple(
            (
                row["name"],
                f"{1e3 * row['measured_s']:.2f}",
                f"{row['predicted_s'] / row['measured_s']:.2f}",
                f"{row['kernels_s'] / row['measured_s']:.2f}",
                gib(row["measured_peak_bytes"]),
                gib(row["predicted_peak_bytes"]),
                gib(row["xla_peak_bytes"]),
            )
            for row in rows
        ),
    )
    names = [f.name for f in fields(JudgedStep)]
    return [steps, table([JudgedStep(**{name: row[name] for name in names}) for row in rows])]


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
