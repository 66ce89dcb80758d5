"""What the plans of plan_quality amount to: ratios to the best expert, fidelity to XLA, and the tables that show them.

Owns that arithmetic, over plain records. Measures nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from bench._common import Table, gib
from bench.cost_fidelity import by_kind, ratios
from rhino.program.operations import COLLECTIVES

LEVELS = ("O1", "O2")
# A plan that beats the best expert by this much counts.
CLEARLY = 1.10
Row = dict[str, Any]


def time_of(plan: Row | None) -> float | None:
    """Predicted seconds of a plan's step; None where there is no plan."""
    return plan["predicted"]["step_time_s"] if plan and "predicted" in plan else None


def judge(plans: dict[str, Row]) -> Row:
    """Found plans against the best expert of one case."""
    experts = {name: t for name, p in plans.items() if name not in LEVELS and (t := time_of(p)) is not None}
    best = min(experts, key=lambda name: experts[name], default="")
    row: Row = {"best_expert": best, "best_expert_s": experts.get(best)}
    for level in LEVELS:
        mine = time_of(plans.get(level))
        row[f"{level}_s"] = mine
        row[f"{level}_over_best"] = mine / experts[best] if mine is not None and best else None
    row["experts"] = {name: t / experts[best] for name, t in experts.items()}
    # A refusal is right when no expert fits either.
    row["refused"] = {level: level in plans and not plans[level].get("skipped") and row[f"{level}_s"] is None
                      for level in LEVELS}  # fmt: skip
    return row


def fidelity(plan: Row) -> Row | None:
    """Prediction over XLA's program, for a plan that was compiled."""
    xla = plan.get("xla")
    if not xla or "error" in xla or "predicted" not in plan:
        return None
    predicted, measured = plan["predicted"], by_kind(xla["collectives"])
    total = sum(measured.values())
    return {
        "peak_ratio": predicted["peak_bytes"] / xla["peak_bytes"],
        "comm_ratios": ratios(predicted["comm_bytes"], measured),
        "comm_ratio": sum(predicted["comm_bytes"].values()) / total if total else None,
        "xla_peak_bytes": xla["peak_bytes"],
        "xla_comm_bytes": measured,
        "fits": xla["peak_bytes"] <= plan["cluster"]["memory_bytes"],
    }


def summary(cases: Sequence[Row]) -> Row:
    """The figures of the whole run."""
    found: Row = {"cases": len(cases)}
    for level in LEVELS:
        key = f"{level}_over_best"
        known = [(c[key], c["case"]) for c in cases if c.get(key) is not None]
        found[level] = {
            "compared": len(known),
            "worst": max(known, default=None),
            "median": statistics.median(r for r, _ in known) if known else None,
            "above_one": sorted(name for r, name in known if r > 1 + 1e-9),
            "models_clearly_better": sorted({name.split("@")[0] for r, name in known if 1 / r >= CLEARLY}),
            "refused": sorted(c["case"] for c in cases if c["refused"][level]),
            "refused_though_an_expert_fits": sorted(
                c["case"] for c in cases if c["refused"][level] and c["best_expert"]
            ),
        }
    compiled = [(c["case"], p["plan"], f) for c in cases for p in c["plans"] if (f := p.get("fidelity"))]
    kinds: dict[str, list[float]] = {}
    for _, _, f in compiled:
        for kind, ratio in f["comm_ratios"].items():
            kinds.setdefault(kind, []).append(ratio if ratio is not None else float("inf"))
    found["compiled"] = len(compiled)
    found["peak_ratio"] = _spread([f["peak_ratio"] for _, _, f in compiled])
    found["comm_ratio"] = _spread([f["comm_ratio"] for _, _, f in compiled if f["comm_ratio"] is not None])
    found["comm_ratio_by_kind"] = {kind: _spread(kinds[kind]) for kind in COLLECTIVES if kind in kinds}
    found["over_memory"] = sorted(f"{case}: {plan}" for case, plan, f in compiled if not f["fits"])
    return found


def _spread(values: Sequence[float]) -> Row | None:
    """Median, and the one furthest from 1, of ratios. A kind that XLA does not have counts as infinite."""
    if not values:
        return None
    finite = [v for v in values if v not in (0.0, float("inf"))]
    worst = max(finite, key=lambda v: max(v, 1 / v), default=None)
    return {
        "median": statistics.median(finite) if finite else None,
        "worst": worst,
        "count": len(values),
        "one_sided": len(values) - len(finite),
    }


def tables(cases: Sequence[Row], experts: Sequence[str]) -> list[Table]:
    """Found against the best expert, every expert, fidelity, and the summary."""
    return [_quality(cases), _experts(cases, experts), *_fidelity(cases), _summary(summary(cases))]


def _quality(cases: Sequence[Row]) -> Table:
    rows = []
    for c in cases:
        plans = {p["plan"]: p for p in c["plans"]}
        mesh = "x".join(str(size) for _, size in plans.get("O1", {}).get("mesh", []))
        found = (_ms(c[f"{level}_s"]) for level in LEVELS)
        over = (_ratio(c[f"{level}_over_best"]) for level in LEVELS)
        rows.append((c["case"], *found, _ms(c["best_expert_s"]), c["best_expert"] or "none", *over, mesh))
    columns = ("case", "O1 ms", "O2 ms", "expert ms", "best expert", "O1/expert", "O2/expert", "O1 mesh")
    return Table("Predicted step time, found against the best expert", columns, tuple(rows))


def _experts(cases: Sequence[Row], experts: Sequence[str]) -> Table:
    rows = []
    for c in cases:
        plans = {p["plan"]: p for p in c["plans"]}
        cells = []
        for name in experts:
            plan = plans.get(name, {})
            cells.append(
                f"{c['experts'][name]:.2f}" if name in c["experts"] else "memory" if plan.get("applies") else "-"
            )
        rows.append((c["case"], *cells))
    return Table("Step time over the best expert's; - where the rule does not apply", ("case", *experts), tuple(rows))


def _fidelity(cases: Sequence[Row]) -> Iterable[Table]:
    rows = []
    for c in cases:
        for p in c["plans"]:
            xla, f = p.get("xla"), p.get("fidelity")
            if xla and "error" in xla:
                rows.append(
                    (f"{c['case']} {p['plan']}", *[""] * (3 + len(COLLECTIVES)), xla["error"].splitlines()[0][:60])
                )
            elif f:
                kinds = f["comm_ratios"]
                cells = [
                    _ratio(kinds[k]) if kinds.get(k) is not None else "ours" if k in kinds else "" for k in COLLECTIVES
                ]
                peak = (gib(p["predicted"]["peak_bytes"]), gib(f["xla_peak_bytes"]), _ratio(f["peak_ratio"]))
                rows.append((f"{c['case']} {p['plan']}", *peak, *cells, "" if f["fits"] else "over memory"))
    if rows:
        columns = ("plan", "peak GiB", "XLA GiB", "ratio", *COLLECTIVES, "")
        yield Table("Predicted over compiled: peak memory, and bytes by kind of collective", columns, tuple(rows))


def _summary(found: Row) -> Table:
    rows = [("cases", str(found["cases"]), "")]
    for level in LEVELS:
        part = found[level]
        if not part["compared"]:
            continue
        rows += [
            (f"{level}: worst over best expert", _ratio(part["worst"][0]), part["worst"][1]),
            (f"{level}: median over best expert", _ratio(part["median"]), f"{part['compared']} compared"),
            (f"{level}: models 10 % better", str(len(part["models_clearly_better"])),
             ", ".join(part["models_clearly_better"])),
            (f"{level}: above the best expert", str(len(part["above_one"])), ", ".join(part["above_one"])),
            (f"{level}: no plan fits", str(len(part["refused"])), ", ".join(part["refused"])),
            (f"{level}: no plan, yet an expert fits", str(len(part["refused_though_an_expert_fits"])),
             ", ".join(part["refused_though_an_expert_fits"])),
        ]  # fmt: skip
    for what, key in (("peak memory", "peak_ratio"), ("all bytes", "comm_ratio")):
        if found[key]:
            rows.append((f"predicted/compiled {what}: median", _ratio(found[key]["median"]),
                         f"worst {_ratio(found[key]['worst'])} of {found[key]['count']}"))  # fmt: skip
    for kind, part in found["comm_ratio_by_kind"].items():
        detail = f"worst {_ratio(part['worst'])} of {part['count']}, {part['one_sided']} on one side only"
        rows.append((f"predicted/compiled {kind}: median", _ratio(part["median"]), detail))
    rows.append(("compiled plans over the device's memory", str(len(found["over_memory"])),
                 ", ".join(found["over_memory"])))  # fmt: skip
    return Table("Summary", ("", "", ""), tuple(rows))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.2f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
