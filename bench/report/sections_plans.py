"""The sections of the page of results that are about plans: how fast they are found, how true and how good they are."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from bench._common import Errors
from bench._quality_cases import CLUSTERS, STANDARD
from bench._quality_tables import CLEARLY, LEVELS, summary
from bench.report.benches import devices, model
from bench.report.store import Run
from bench.report.tables import NONE, Fact, Kept, ResultTable, Row, Section, clock, grid, memory, ratio, sent, step

# From the problem to the chosen plan, as bench._phases calls the parts.
_SEARCH = ("problem", "tie", "solve", "evaluate")
_TITLES = {
    "all-reduce": "all-reduces", "all-gather": "all-gathers", "reduce-scatter": "reduce-scatters",
    "all-to-all": "all-to-alls", "collective-permute": "collective-permutes",
}  # fmt: skip


def cases(kept: Kept, bench: str, key: str = "cases") -> list[tuple[str, Run, Mapping[str, Any]]]:
    """What each part's one case is called, its run and its results; parts whose case failed are left out."""
    return [(part.label, run, run.results[key][0]) for part, run in kept.of(bench) if run.results[key]]


def search_time(kept: Kept) -> Section:
    """How long a search takes."""
    rows = tuple(
        Row(
            r["case"], label,
            (f"{r['lines']:,}", grid(r["mesh"]), clock(r["plan_s"]["median"]), clock(r["plan_cpu_s"]["median"]),
             clock(sum(r["phases_s"][name] for name in _SEARCH)), memory(r["plan_peak_rss_bytes"]),
             clock(r["propagate_s"]["median"])),
            (run,),
        )
        for label, run, r in cases(kept, "search_time")
    )  # fmt: skip
    columns = (
        ("lines", "lines of MLIR"), ("mesh", "mesh found"), ("plan", "`rhino plan`"), ("cpu", "its CPU time"),
        ("search", "the search alone"), ("memory", "peak memory"), ("propagation", "propagation alone"),
    )  # fmt: skip
    return Section(
        "search_time", ("search_time",), "Search time",
        "From `.mlir` to annotated `.mlir` with `rhino plan`, start-up and files included. Layers are unrolled "
        "unless a row says otherwise. The search alone is what lies between the program as data and the chosen "
        "plan, in a further run, and of several programs (micro-batches, recomputation) that which was chosen. "
        "Propagation alone is Shardy's pass over the same file, which decides nothing. "
        "Medians of the rounds.",
        (ResultTable("model", columns, rows),),
    )  # fmt: skip


def cost_fidelity(kept: Kept) -> Section:
    """Predictions against what XLA compiled."""
    rows = []
    for label, run, r in cases(kept, "cost_fidelity"):
        ours, theirs = (sum(r[key].values()) for key in ("predicted_comm_bytes", "xla_comm_bytes"))
        rows.append(Row(
            r["case"], label,
            (grid(r["mesh"]), memory(r["predicted_peak_bytes"]), memory(r["xla_peak_bytes"]), ratio(r["peak_ratio"]),
             ratio(r["baseline_peak_ratio"]), sent(ours), sent(theirs), ratio(r["comm_ratio"], 3),
             ratio(r["baseline_comm_ratio"])),
            (run,),
        ))  # fmt: skip
    columns = (
        ("mesh", "mesh found"), ("peak", "peak predicted"), ("xla_peak", "by XLA"), ("peak_ratio", "ratio"),
        ("naive_peak_ratio", "arguments and results alone"), ("sent", "sent, predicted"), ("xla_sent", "by XLA"),
        ("sent_ratio", "ratio"), ("naive_sent_ratio", "one gradient all-reduce alone"),
    )  # fmt: skip
    return Section(
        "cost_fidelity", ("cost_fidelity",), "Predicted against XLA",
        "Peak memory of a device, and bytes that one device sends in a step: predicted, and as XLA compiled the plan "
        "for devices that need not be here. Two columns say what the ratio would be without a model.",
        (ResultTable("model", columns, tuple(rows)),),
    )  # fmt: skip


def overlap(kept: Kept) -> Section:
    """Found plans compiled in two orders."""
    rows = []
    for label, run, r in cases(kept, "overlap"):
        plain, beside = r["plain"], r["overlap"]
        rows.append(Row(
            r["case"], label,
            (grid(r["mesh"]), step(r["predicted"]["step_time_s"]), step(plain["step_s"]), step(beside["step_s"]),
             ratio(r["step_ratio"]), step(sum(plain["waited_s"].values())), step(sum(beside["waited_s"].values())),
             memory(r["predicted"]["peak_bytes"]), memory(plain["peak_bytes"]), memory(beside["peak_bytes"]),
             clock(plain["compile_s"]), clock(beside["compile_s"])),
            (run,),
        ))  # fmt: skip
    columns = (
        ("mesh", "mesh found"), ("predicted", "step predicted"), ("plain", "plain"), ("beside", "beside computing"),
        ("ratio", "ratio"), ("waits_plain", "waits, plain"), ("waits", "beside"), ("peak", "peak predicted"),
        ("peak_plain", "plain"), ("peak_beside", "beside"), ("compile_plain", "compiling, plain"),
        ("compile", "beside"),
    )  # fmt: skip
    return Section(
        "overlap", ("overlap",), "Collectives beside computing",
        "A found plan compiled in XLA's plain order, and with collectives beside computing by the times of its cluster "
        "(`rhino compile --overlap`). Steps, and what computing waits for in them, are by the timelines of the "
        "compiled programs. Layers are a loop and recomputed, but those of the first row are unrolled.",
        (ResultTable("model", columns, tuple(rows)),),
    )  # fmt: skip


def timeline(kept: Kept) -> Section:
    """Plans' predicted times against the timelines of what XLA compiled of them."""
    rows, plans, ranks, against = [], [], [], []
    for label, run, r in cases(kept, "timeline"):
        by_name = {p["plan"]: p for p in r["plans"]}
        expert = next((p for name, p in by_name.items() if name not in LEVELS), None)
        found = [by_name.get(name) for name in LEVELS]
        plans += r["plans"]
        ranks += [r["spearman"]] if r["spearman"] is not None else []
        against += [r["against_experts"][name] for name in LEVELS if name in r["against_experts"]]
        rows.append(Row(
            r["case"], label,
            (*(step(p["timeline_s"]) if p else NONE for p in found), *(ratio(p["ratio"]) if p else NONE for p in found),
             expert["plan"] if expert else NONE, step(expert["timeline_s"]) if expert else NONE,
             ratio(expert["ratio"]) if expert else NONE, ratio(r["against_experts"].get("O1"))),
            (run,),
        ))  # fmt: skip
    facts: tuple[Fact, ...] = ()
    if plans:
        errors = Errors.of([abs(p["ratio"] - 1) for p in plans])
        facts = (
            Fact("plans", "plans", str(len(plans))),
            Fact("median", "distance of predicted over timeline from one, median", f"{errors.median:.1%}"),
            Fact("p90", "90th percentile of it", f"{errors.p90:.1%}"),
            Fact("spearman", "rank correlation over the plans of a case, median",
                 ratio(median(ranks)) if ranks else NONE),
            Fact("worst", "plan found over the best expert's, by the timeline, worst",
                 ratio(max(against, default=None))),
        )  # fmt: skip
    columns = (
        ("O1", "found at O1"), ("O2", "at O2"), ("O1_ratio", "predicted over it, O1"), ("O2_ratio", "O2"),
        ("expert", "best expert"), ("expert_step", "its step"), ("expert_ratio", "predicted over it"),
        ("against", "O1 over the expert"),
    )  # fmt: skip
    return Section(
        "timeline", ("timeline",), "Plans by the timelines of their programs",
        "Plans found and the best expert's by prediction, compiled by XLA with collectives beside computing, as "
        "`rhino.parallelize` has it: the step by the timeline of that program, and what the search predicted over it. "
        "No GPU ran them: kernels and collectives are priced by the same model in both.",
        (ResultTable("model", columns, tuple(rows)),), facts,
    )  # fmt: skip


def plan_quality(kept: Kept) -> Section:
    """Found plans against experts'."""
    runs = {run.results["cases"][0]["case"]: run for _, run in kept.of("plan_quality") if run.results["cases"]}
    found = {name: run.results["cases"][0] for name, run in runs.items()}
    rows = []
    for one in STANDARD:
        names = [f"{one.name}@{cluster}" for cluster in CLUSTERS]
        if any(name in found for name in names):
            cells = tuple(_over_best(found[name]) if name in found else "not run" for name in names)
            rows.append(Row(one.name, model(one), cells, tuple(runs[name] for name in names if name in runs)))
    labels = {part.name: part.label for part in kept.bench("plan_quality").parts}
    facts = _quality_facts(summary(list(found.values())), labels) if found else ()
    return Section(
        "plan_quality", ("plan_quality",), "Against experts",
        "Predicted step time of the plan found at O2 over that of the best plan that an engineer would write by hand "
        "([expert plans](guide/experts.md)); below 1 the found plan is faster. O1 is in brackets where it differs by a "
        "percent. The plans found and the best expert's are compiled by XLA.",
        (ResultTable("model", tuple((cluster, devices(cluster)) for cluster in CLUSTERS), tuple(rows)),), facts,
    )  # fmt: skip


def _over_best(case: Mapping[str, Any]) -> str:
    slow, fast = (case[f"{level}_over_best"] for level in reversed(LEVELS))
    if not case["best_expert"]:
        return "fits nobody" if all(case[f"{level}_s"] is None for level in LEVELS) else "no expert fits"
    if slow is None:
        return ratio(fast)
    return ratio(slow) if fast is None or abs(fast / slow - 1) < 0.01 else f"{slow:.2f} ({fast:.2f})"


def _quality_facts(found: Mapping[str, Any], labels: Mapping[str, str]) -> tuple[Fact, ...]:
    facts = [Fact("cases", "cases", str(found["cases"]))]
    for level in LEVELS:
        part = found[level]
        if part["compared"]:
            facts += [
                Fact(f"{level}-worst", f"{level}, worst ratio ({labels[part['worst'][1]]})", f"{part['worst'][0]:.5f}"),
                Fact(f"{level}-median", f"{level}, median ratio", ratio(part["median"], 3)),
                Fact(f"{level}-clearly", f"{level}, models at least {CLEARLY - 1:.0%} faster on some cluster",
                     str(len(part["models_clearly_better"]))),
                Fact(f"{level}-lost", f"{level}, refused though an expert's plan fits",
                     str(len(part["refused_though_an_expert_fits"]))),
            ]  # fmt: skip
    facts += [
        Fact("compiled", "plans compiled by XLA", str(found["compiled"])),
        Fact("over-memory", "of them over the device's memory in XLA's count", str(len(found["over_memory"]))),
    ]
    if found["peak_ratio"]:
        facts += [
            Fact("peak-median", "peak memory predicted over XLA's, median", ratio(found["peak_ratio"]["median"])),
            Fact("peak-worst", "the same, furthest from 1", ratio(found["peak_ratio"]["worst"])),
        ]
    for kind, part in found["comm_ratio_by_kind"].items():
        facts += [
            Fact(f"{kind}-median", f"bytes of {_TITLES[kind]} predicted over XLA's, median", ratio(part["median"], 3)),
            Fact(f"{kind}-worst", "the same, furthest from 1", ratio(part["worst"], 3)),
        ]
    return tuple(facts)


def without(kept: Kept) -> Section:
    """Each part of the search left out."""
    rows = []
    for label, run, r in cases(kept, "without"):
        ours, other = r["with"]["predicted"], r["without"]["predicted"]
        rows.append(Row(
            r["case"], label,
            (step(ours["step_time_s"]), step(other["step_time_s"]), ratio(r["time"]), memory(ours["peak_bytes"]),
             memory(other["peak_bytes"]), ratio(r["peak_ratio"])),
            (run,),
        ))  # fmt: skip
    columns = (
        ("step", "predicted step"), ("without_step", "without"), ("ratio", "ratio"), ("peak", "predicted peak"),
        ("without_peak", "without"), ("peak_ratio", "predicted over XLA's"),
    )  # fmt: skip
    return Section(
        "without", ("without",), "What parts of the search are worth",
        "The plan that is found, and that of the same search without one part. XLA's peak is of the former, compiled "
        "for H100s. Optimizer state is on the hosts where nothing fits without: the other plan needs so much memory.",
        (ResultTable("left out", columns, tuple(rows)),),
    )  # fmt: skip


def scanned(kept: Kept) -> Section:
    """Loops over layers against unrolled layers."""
    rows = []
    for label, run, r in cases(kept, "scanned"):
        loop, unrolled = r["scanned"], r["unrolled"]
        steps = [part["predicted"]["step_time_s"] for part in (loop, unrolled)]
        rows.append(Row(
            r["case"], label,
            (f"{loop['lines']:,}", f"{unrolled['lines']:,}", clock(loop["plan_cpu_s"]), clock(unrolled["plan_cpu_s"]),
             step(steps[0]), step(steps[1]), ratio(steps[0] / steps[1])),
            (run,),
        ))  # fmt: skip
    columns = (
        ("lines", "lines as a loop"), ("unrolled_lines", "unrolled"), ("cpu", "CPU time of `rhino plan`, loop"),
        ("unrolled_cpu", "unrolled"), ("step", "predicted step, loop"), ("unrolled_step", "unrolled"),
        ("ratio", "ratio"),
    )  # fmt: skip
    return Section(
        "scanned", ("scanned",), "Layers as a loop",
        "The same model with its layers as one loop, and with every layer written out, both planned for 128 H100s. "
        "A ratio below 1 means that the loop's plan is predicted to be faster.",
        (ResultTable("model", columns, tuple(rows)),),
    )  # fmt: skip


def kernels(kept: Kept) -> Section:
    """Steps with cuDNN's attention."""
    rows = []
    for label, run, r in cases(kept, "kernels"):
        ours, plain = r["predicted"], r["plain"]
        other = step(plain["predicted"]["step_time_s"]) if plain["fits"] else "does not fit"
        new = [*(r["lacking"] or ()), *(r["lacking_compiled"] or ())]
        rows.append(Row(
            r["case"], label,
            (step(ours["step_time_s"]), other, memory(ours["peak_bytes"]), ratio(r["peak_ratio"]),
             sent(sum(ours["comm_bytes"].values())), ratio(r["comm_ratio"], 3),
             (", ".join(dict.fromkeys(new)) or "none") if plain["fits"] else NONE, f"1/{1 / r['part']:.0f}"),
            (run,),
        ))  # fmt: skip
    columns = (
        ("step", "predicted step"), ("plain_step", "with plain attention"), ("peak", "peak memory"),
        ("peak_ratio", "over XLA's"), ("sent", "sent"), ("sent_ratio", "over XLA's"),
        ("new", "collectives that plain attention lacks"), ("part", "a device's part of a call"),
    )  # fmt: skip
    return Section(
        "kernels", ("kernels",), "Kernels",
        "Steps with cuDNN's fused attention, planned and compiled without a GPU, against the plan of the same step "
        "with plain attention.",
        (ResultTable("model", columns, tuple(rows)),),
    )  # fmt: skip


def joint_search(kept: Kept) -> Section:
    """Pipelines found for large models."""
    rows = []
    for label, run, r in cases(kept, "joint_search"):
        found, experts = r["found"], r.get("experts", {})
        if "error" in found:
            rows.append(Row(r["case"], label, (found["error"], *[NONE] * 7), (run,)))
            continue
        times = [(experts.get(key) or {}).get("step_time_s") for key in ("published", "megatron_3d")]
        slower = [NONE if t is None else ratio(t / found["step_time_s"]) for t in times]
        rows.append(Row(
            r["case"], label,
            (found["plan"], step(found["step_time_s"]), clock(found["wall_s"]), clock(found["cpu_s"]),
             memory(found["peak_bytes"]), memory(r.get("xla", {}).get("peak_bytes")), *slower),
            (run,),
        ))  # fmt: skip
    columns = (
        ("plan", "found"), ("step", "predicted step"), ("wall", "search"), ("cpu", "its CPU time"),
        ("peak", "peak memory"), ("xla_peak", "by XLA"), ("published", "16 stages of 4, over found"),
        ("megatron", "Megatron-LM's grid, over found"),
    )  # fmt: skip
    return Section(
        "joint_search", ("joint_search",), "Joint search",
        "Stages, sharding, micro-batches and schedule found together for models that one program cannot hold on 64 "
        "V100s, against the published shape and the best of Megatron-LM's grid under the same costs.",
        (ResultTable("model", columns, tuple(rows)),),
    )  # fmt: skip


def by_hand(kept: Kept) -> Section:
    """What users can ask for by flags, against what is found."""
    rows, over = [], []
    for label, run, r in cases(kept, "by_hand"):
        default = r["default"]
        mine = None if r["faster"] is None else 1 / (1 + r["faster"])
        rows.append(Row(
            r["case"], label,
            (default.get("plan", NONE), step(default.get("step_time_s")), f"{r['planned']} of {r['wished']}",
             str(r["late"]), r["best_wish"] or NONE, ratio(mine, 3)),
            (run,),
        ))  # fmt: skip
        over += [mine] if mine is not None else []
    columns = (
        ("plan", "found"), ("step", "predicted step"), ("planned", "wishes with a plan"), ("late", "not tried"),
        ("wish", "fastest wish"), ("ratio", "its step over found"),
    )  # fmt: skip
    facts = (Fact("worst", "fastest wish over what is found, least", ratio(min(over), 3)),) if over else ()
    return Section(
        "by_hand", ("by_hand",), "Against flags",
        "What is found at O1 with no flags, and the fastest of what can be asked for by flags: meshes of two axes, "
        "micro-batches, stages, schedules, recomputation, and the rules of experts. For ten minutes each, the quickest "
        "to plan first: experts and meshes, then micro-batches, then pipelines.",
        (ResultTable("model", columns, tuple(rows)),), facts,
    )  # fmt: skip


def stages(kept: Kept) -> Section:
    """Cuts of graphs against cuts of orders."""

    def more(seconds: float | None, ours: float) -> str:
        return NONE if seconds is None else f"{seconds / ours - 1:+.2%}"

    rows = tuple(
        Row(
            r["case"], label,
            (str(r["units"]), step(r["step_s"]), ratio(r["slowest_s"] / r["mean_s"]),
             more(r["program_order_s"], r["step_s"]), more(r["best_order_s"], r["step_s"]),
             more(r["worst_order_s"], r["step_s"]), f"{r['gap']:.4%}", clock(r["solving_cpu_s"])),
            (run,),
        )
        for label, run, r in cases(kept, "stages")
    )  # fmt: skip
    columns = (
        ("units", "units"), ("step", "predicted step"), ("balance", "slowest stage over mean"),
        ("program", "program's order"), ("best", "best order"), ("worst", "worst order"), ("gap", "proved gap"),
        ("cpu", "CPU time of the cut"),
    )  # fmt: skip
    return Section(
        "stages", ("stages",), "Stages",
        "The cut of a step's graph into stages, against the best cuts of 20 single orders of it: the program's, depth "
        "first, breadth first, and 17 at random. Percentages are seconds above the graph's cut. The gap is what the "
        "answer may at most be above the optimum.",
        (ResultTable("model", columns, rows),),
    )  # fmt: skip
