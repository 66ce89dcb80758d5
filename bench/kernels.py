"""Steps with cuDNN's attention against the same steps with plain attention: are they planned as well, and as predicted?

    python -m bench.kernels [--only CASE ...] [--quick] [--json FILE|-]

Each step is exported on one device, without a GPU, so that files hold raw calls; planned by `rhino plan`, and compiled
by `rhino compile` for GPUs that need not be here. Baseline of the same run: the plan of the step with plain attention.
Compared are the kinds of collectives, peak memory and bytes sent, predicted and in XLA's programs, and what part of a
call one device has. Some cases force a layout, and one has a sequence for which plain attention does not fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from bench._common import CACHE, BenchError, Table, gib, main, measure_and_publish, note, parser, run, select, tool
from bench._kernel_cases import CASES, QUICK, Case
from bench.cost_fidelity import by_kind

# Kinds that carry less than this part of all bytes are left out of comparisons of kinds in compiled programs.
NEGLIGIBLE = 0.01
_CALL = re.compile(r"custom_call @__cudnn\$fmha\w+\(.*? : \(tensor<([\dx]+)x\w+>")
Row = dict[str, Any]


def planned(case: Case, source: Path, out: Path) -> Row:
    """The plan of a file as JSON; the annotated module is written to `out`."""
    record = out.with_suffix(".json")
    options = ["--stages", str(case.stages)]
    note(f"{case.name}: planning {source.name}")
    ran = run([*tool("rhino"), "plan", source, "--cluster", case.cluster, *options, "-o", out, "--json", record, "-q"])
    return {**json.loads(record.read_text(encoding="utf-8")), "seconds": ran.wall_s}


def compiled(case: Case, module: Path) -> Row:
    """What XLA makes of an annotated module."""
    record = module.with_suffix(".xla.json")
    note(f"{case.name}: compiling for {case.target}")
    run(
        [*tool("rhino"), "compile", module, "--target", case.target, "--json", record, "-q"],
        env={"JAX_PLATFORMS": "cpu"},
    )
    found: Row = json.loads(record.read_text(encoding="utf-8"))
    return found


def queries(text: str) -> list[int]:
    """Elements of the first operand of each call of the kernel, in a module's text."""
    return [prod(map(int, match[1].split("x"))) for match in _CALL.finditer(text)]


def kinds_lacking(ours: Mapping[str, int], baseline: Mapping[str, int]) -> list[str]:
    """Kinds of collectives that carry more than a negligible part of `ours`, and that the baseline has not at all."""
    total = sum(ours.values())
    return sorted(kind for kind, sent in ours.items() if sent > NEGLIGIBLE * total and not baseline.get(kind))


def groups(xla: Row) -> list[dict[str, int]]:
    """Bytes a device sends by kind, for each group of devices that runs a stage."""
    return [by_kind(group["collectives"]) for group in xla.get("groups", (xla,))]


def nearest(predicted: Mapping[str, int], sent: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """The bytes of the group that a prediction is of: of a pipeline it is one stage's, and does not say which."""
    wanted = sum(predicted.values())
    return min(sent, key=lambda one: abs(sum(one.values()) - wanted))


def baseline(case: Case, out: Path) -> Row:
    """The plan of the same step with plain attention, or why there is none."""
    try:
        plan = planned(case, case.file("xla"), out)
    except BenchError as error:
        if case.plain_fits or "memory limit" not in str(error):
            raise
        return {"fits": False, "why": str(error).strip().splitlines()[-1]}
    return {"fits": True, "predicted": plan["predicted"], "mesh": plan["mesh"]}


def judge(plan: Row, xla: Row, plain: Row) -> Row:
    """The comparisons of a case: ratios are predicted over XLA's."""
    predicted = plan["predicted"]
    sent = nearest(predicted["comm_bytes"], groups(xla))
    total, predicted_total = sum(sent.values()), sum(predicted["comm_bytes"].values())
    other = plain["predicted"]["comm_bytes"] if plain["fits"] else None
    return {
        "peak_ratio": predicted["peak_bytes"] / xla["peak_bytes"],
        "comm_ratio": predicted_total / total if total else None,
        "lacking": kinds_lacking(predicted["comm_bytes"], other) if other is not None else None,
        "lacking_compiled": kinds_lacking(sent, other) if other is not None else None,
        "xla_comm_bytes": sent,
        "whole": sorted(use["name"] for use in plan.get("kernels", ()) if use["replicated"]),
    }


def measure(case: Case) -> Row:
    """Plan a step with either attention, compile the one with the kernel, compare."""
    folder = CACHE / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{case.name.replace(':', 'x')}.mlir"
    plan = planned(case, case.file("cudnn"), out)
    local = queries(out.read_text(encoding="utf-8"))
    # Bytecode is the program of the text, whose calls can be read.
    whole = queries(replace(case, suffix=".mlir").file("cudnn").read_text(encoding="utf-8"))
    plain = baseline(case, out.with_suffix(".plain.mlir"))
    xla = compiled(case, out)
    return {
        "case": case.name,
        "mesh": plan["mesh"],
        "stages": plan["stages"],
        "microbatches": plan["microbatches"],
        "plan_s": plan["seconds"],
        "predicted": plan["predicted"],
        "xla_peak_bytes": xla["peak_bytes"],
        "compile_s": xla["seconds"],
        "calls": len(local),
        "part": max(local) / max(whole),
        "plain": plain,
        **judge(plan, xla, plain),
    }


def tables(results: list[Row]) -> list[Table]:
    """Fidelity, and the comparison with plain attention."""
    fidelity, against = [], []
    for r in results:
        predicted, plain = r["predicted"], r["plain"]
        sent = sum(predicted["comm_bytes"].values()), sum(r["xla_comm_bytes"].values())
        ratio = "-" if r["comm_ratio"] is None else f"{r['comm_ratio']:.3f}"
        mesh = "x".join(str(size) for _, size in r["mesh"])
        fidelity.append((
            r["case"], mesh, gib(predicted["peak_bytes"]), gib(r["xla_peak_bytes"]), f"{r['peak_ratio']:.2f}",
            f"{sent[0] / 1e6:,.0f}", f"{sent[1] / 1e6:,.0f}", ratio, f"{r['compile_s']:.0f}",
        ))  # fmt: skip
        step = f"{predicted['step_time_s'] * 1e3:,.1f}"
        part = f"1/{1 / r['part']:.0f}"
        if not plain["fits"]:
            against.append((r["case"], step, "does not fit", gib(predicted["peak_bytes"]), "-", "-", part))
            continue
        lacking = ", ".join(dict.fromkeys([*r["lacking"], *r["lacking_compiled"]])) or "none"
        other = plain["predicted"]
        against.append((
            r["case"], step, f"{other['step_time_s'] * 1e3:,.1f}", gib(predicted["peak_bytes"]),
            gib(other["peak_bytes"]), lacking, part,
        ))  # fmt: skip
    return [
        Table(
            "Predicted and as XLA compiled it: peak memory of a device, bytes a device sends in a step",
            ("case", "mesh", "GiB", "XLA", "ratio", "MB", "XLA", "ratio", "compile s"),
            tuple(fidelity),
        ),
        Table(
            "Against plain attention: step in ms, peak in GiB, collectives that it lacks, a device's part of a call",
            ("case", "step", "plain", "peak", "plain", "new kinds", "part"),
            tuple(against),
        ),
    ]


def body() -> None:
    """Measure and print."""
    p = parser("bench.kernels", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases whose name contains one of these")
    args = p.parse_args()
    cases = select(QUICK if args.quick else CASES, args.only)
    measure_and_publish("kernels", args, cases, measure, tables)


if __name__ == "__main__":
    main(body)
