"""Published, measured training runs against what Rhino predicts of them: the step's time, by row and by kind of run.

    python -m bench.published_runs [--rows FILE.csv] [--only TEXT ...] [--limit N] [--json FILE|-]

Each row's architecture is built from examples/models, laid out as it was published, and priced by the functions that
the search uses, memory not limited. Nothing is fitted to a row (docs/design/cost-model.md, "Against published runs").
Needs no GPU. `--parts` adds to the table what a step's time is made of; the record has it always. It can be stopped and
started again: rows are kept in out/bench/published, by what they depend on.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench._common import CACHE, ROOT, BenchError, Errors, Table, main, note, parser, publish
from bench._quality_cases import digest_of

ROWS = ROOT / "bench" / "data" / "published_runs.csv"
FOLDER = CACHE / "published"
QUICK = (
    "mosaic-1b-a10040-bf16-s2048-16g",
    "kor22-22b-full",
    "alpa-gpt1.3b-4v100-megatron",
    "rn50-mxnet-1v100-16g-fp32",
)
# What part a step's time is told in, and their order in tables.
PARTS = ("products", "attention", "memory", "weights", "update", "collectives", "replicas", "bubble", "idle")
_NAMED = ("id", "gpu", "arch", "global_batch", "gpus", "step_time_s")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table with the columns of bench/data/published_runs.csv; more columns do no harm.

    Raises:
      BenchError: it cannot be read, or lacks columns; names them.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows, columns = list(reader), set(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: {error}") from None
    with ROWS.open(encoding="utf-8", newline="") as file:
        needed = next(csv.reader(file))
    if missing := [name for name in needed if name not in columns and name not in ("read_how", "model")]:
        raise BenchError(f"{path}: no column {', '.join(missing)}")
    return rows


def calibrates(row: dict[str, str]) -> bool:
    """Whether a row is in the summary: not where its own check, or the data's README, warns of it.

    That is: flagged rows, BERT at 512 tokens (un-padded runs), and MegaScale's own model, which has another block.
    """
    unpadded = row["arch"] == "bert" and row["seq_len"] == "512"
    return not (row["check"].startswith("FLAG") or unpadded or "-megascale-" in row["id"])


def judge(row: dict[str, str]) -> dict[str, Any]:
    """One row predicted: with `why` where it is not expressed."""
    from bench._published_hardware import cluster_of, limited
    from bench._published_layouts import layout_of
    from bench._published_models import NotExpressed, fused_attention, model_of, number
    from bench._published_software import software_of
    from bench._published_times import predict
    from rhino.errors import RhinoError
    from rhino.experts import NotApplicable

    measured_s = float(row["step_time_s"])
    found: dict[str, Any] = {
        "id": row["id"], "predicted_s": None, "measured_s": measured_s, "ratio": None, "why": "", "gpu": row["gpu"],
        "arch": row["arch"], "source": row["source"].split(",")[0].split(" @")[0], "calibrates": calibrates(row),
    }  # fmt: skip
    start = time.process_time()
    try:
        gpus, per_host = number(row, "gpus"), number(row, "gpus_per_host")
        cluster = cluster_of(row["gpu"], gpus, per_host, row["network"], row["notes"])
        era = software_of(row)
        cluster = limited(era.on(cluster), row["gpu"])
        layout, model = layout_of(row), model_of(row)
        found |= {"layout": layout.family, "precision": row["precision"], "fused_attention": fused_attention(row)}
        predicted = predict(model, layout, cluster, era)
        found["era"] = era.name
    except (NotExpressed, NotApplicable) as error:
        return found | {"why": str(error)}
    except RhinoError as error:
        return found | {"why": error.message}
    return found | {
        "predicted_s": predicted.step_s,
        "ratio": predicted.step_s / measured_s,
        "parts": dict(predicted.parts),
        "notes": [*layout.notes, *model.notes],
        "cpu_s": round(time.process_time() - start, 2),
    }


def judged(rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """All rows, one after the other; a defect in one does not lose the others, and is not kept."""
    results = []
    FOLDER.mkdir(parents=True, exist_ok=True)
    sources = _sources()
    for at, row in enumerate(rows):
        file = FOLDER / f"{hashlib.sha256((sources + json.dumps(row)).encode()).hexdigest()[:24]}.json"
        if file.exists():
            results.append(json.loads(file.read_text(encoding="utf-8")))
            continue
        try:
            found = judge(row)
            file.write_text(json.dumps(found), encoding="utf-8")
        except Exception as error:  # what is printed is a finding, and the row is not expressed
            found = {
                "id": row["id"], "predicted_s": None, "measured_s": float(row["step_time_s"]), "ratio": None,
                "why": f"failed: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}",
            }  # fmt: skip
        told = f"{found['ratio']:.2f}" if found["ratio"] else found["why"]
        note(f"{at + 1} of {len(rows)}, {row['id']}: {told}")
        results.append(found)
    return results


def _sources() -> str:
    """A digest of all that a row's prediction is made by."""
    digest = hashlib.sha256(digest_of("python/rhino", "examples/models").encode())
    for path in sorted((ROOT / "bench").glob("_published_*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def spread_of(ratios: Sequence[float]) -> dict[str, Any]:
    """How far ratios are from 1: median and 90th percentile of |ratio - 1|, and the median ratio, which is the bias."""
    off = Errors.of([abs(ratio - 1) for ratio in ratios])
    return {
        "rows": off.count,
        "median_error": off.median,
        "p90_error": off.p90,
        "median_ratio": statistics.median(ratios),
    }


def era(row: dict[str, Any]) -> str:
    """The software of a run, and eight bits."""
    return str(row["era"]) + (", 8 bits" if "FP8" in row["precision"] else "")


GROUPS: dict[str, Callable[[dict[str, Any]], str]] = {
    "gpu": lambda row: str(row["gpu"]),
    "layout": lambda row: str(row["layout"]),
    "arch": lambda row: str(row["arch"]),
    "era": era,
    "source": lambda row: str(row["source"]),
}


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts, the spread over all rows that may be judged by, and over each group of them."""
    expressed = [row for row in results if row["ratio"] is not None]
    used = [row for row in expressed if row["calibrates"]]
    found: dict[str, Any] = {
        "rows": len(results),
        "expressed": len(expressed),
        "left_out": len(expressed) - len(used),
    }
    if not used:
        return found
    found["all"] = spread_of([row["ratio"] for row in used])
    for name, of in GROUPS.items():
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in used:
            groups.setdefault(of(row), []).append(row)
        found[name] = {
            key: spread_of([row["ratio"] for row in rows]) | {"parts": shares(rows)}
            for key, rows in sorted(groups.items())
        }
    return found


def shares(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median share of each part in the predicted step."""
    return {
        part: statistics.median([row["parts"].get(part, 0.0) / row["predicted_s"] for row in rows]) for part in PARTS
    }


def tables(results: Sequence[dict[str, Any]], found: dict[str, Any], parts: bool) -> list[Table]:
    """Every row; what could not be expressed and why; the groups."""
    columns = ("run", "layout", "measured s", "predicted s", "ratio", *(PARTS if parts else ()))
    lines, refused = [], []
    for row in results:
        if row["ratio"] is None:
            refused.append((row["id"], row["why"]))
            continue
        share = (f"{row['parts'].get(part, 0.0) / row['predicted_s']:.0%}" for part in PARTS) if parts else ()
        mark = "" if row["calibrates"] else " (left out)"
        lines.append(
            (
                row["id"] + mark, row["layout"], f"{row['measured_s']:.4g}", f"{row['predicted_s']:.4g}",
                f"{row['ratio']:.2f}", *share,
            )
        )  # fmt: skip
    made = [Table("Runs", columns, tuple(lines)), Table("Not expressed", ("run", "why"), tuple(refused))]
    head = ("rows", "median |r-1|", "90 %", "median r")
    if "all" in found:
        made.append(Table("All that may be judged by", ("", *head), (("all", *_spread_text(found["all"])),)))
        for name in GROUPS:
            lines = [
                (key, *_spread_text(given), *(f"{given['parts'][part]:.0%}" for part in PARTS))
                for key, given in found[name].items()
            ]
            made.append(Table(f"By {name}", (name, *head, *PARTS), tuple(lines)))
    return [table for table in made if table.rows]


def _spread_text(given: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(given["rows"]), f"{given['median_error']:.1%}", f"{given['p90_error']:.1%}", f"{given['median_ratio']:.2f}",
    )  # fmt: skip


def body() -> None:
    """Predict and print."""
    p = parser("bench.published_runs", __doc__)
    p.add_argument("--rows", type=Path, default=ROWS, metavar="FILE", help="another table of the same columns")
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the rows whose id contains one of these")
    p.add_argument("--limit", type=int, default=0, metavar="N", help="only so many rows, spread over the table")
    p.add_argument("--parts", action="store_true", help="what each row's time is made of, in the table, too")
    args = p.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing runs, and starting a GPU takes seconds
    rows = [row for row in read_rows(args.rows) if not args.only or any(text in row["id"] for text in args.only)]
    if args.quick:
        rows = [row for row in rows if row["id"] in QUICK]
    if not rows:
        raise BenchError(f"no row of {args.rows} is asked for")
    if args.limit and args.limit < len(rows):
        rows = [rows[i * len(rows) // args.limit] for i in range(args.limit)]
    results = judged(rows)
    found = summary(results)
    publish("published_runs", args, {"rows": results, "summary": found}, tables(results, found, args.parts))
    print(
        f"\n{found['expressed']} of {found['rows']} rows are expressed; {found['left_out']} of them are not judged by",
        file=sys.stderr if args.json == "-" else sys.stdout,
    )


if __name__ == "__main__":
    main(body)
