"""The sections of the page of results that are about programs that ran: on CPU devices, between hosts, and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench._common import Errors
from bench._device_steps import KINDS
from bench.cpu_mesh import FOUND
from bench.pipeline_multihost import BASE
from bench.report.sections_plans import cases
from bench.report.store import slug
from bench.report.tables import NONE, Fact, Kept, ResultTable, Row, Section, clock, memory, ratio, sent, step
from bench.resharding import WAY_NAMES


def published_runs(kept: Kept) -> Section:
    """Predicted against published training runs, by hardware and by layout."""
    found = [run for _, run in kept.of("published_runs") if "all" in run.results["summary"]]
    rows, facts = [], []
    for run in found:
        summary = run.results["summary"]
        for name, what in (("gpu", ""), ("layout", "layout "), ("era", "software ")):
            rows += [
                Row(f"{name}-{key}", f"{what}{key}", (str(group["rows"]), *_spread(group)), (run,))
                for key, group in summary[name].items()
            ]
        facts += [
            Fact("expressed", "runs that models and layouts here can express, of those in the table",
                 f"{summary['expressed']} of {summary['rows']}"),
            Fact("left-out", "of these not judged by: they contradict themselves, or the data warn of them",
                 str(summary["left_out"])),
            *(Fact(key, says, text) for (key, says), text in zip(_SPREAD, _spread(summary["all"]), strict=True)),
        ]  # fmt: skip
    columns = (("rows", "runs"), *_SPREAD)
    return Section(
        "published_runs", ("published_runs",), "Published training runs",
        "Step times that others measured and published, on V100s to GB300s, against what is predicted of the same "
        "model, layout and cluster. Constants are of a device, or of an era of software, never of a run. Those of "
        "eras, and what products reach in a long step, were chosen over these same runs. Layouts: see "
        "`python -m bench.published_runs`, which tells every run.",
        (ResultTable("runs", columns, tuple(rows)),), tuple(facts),
    )  # fmt: skip


_SPREAD = (
    ("median", "distance of predicted over measured from one, median"), ("p90", "90th percentile of it"),
    ("bias", "predicted over measured, median"),
)  # fmt: skip


def _spread(group: Mapping[str, Any]) -> tuple[str, str, str]:
    return f"{group['median_error']:.1%}", f"{group['p90_error']:.1%}", ratio(group["median_ratio"])


def device_model(kept: Kept) -> Section:
    """Timelines against steps that ran on a GPU."""
    rows, facts = [], []
    keys = ("search_s", "calibrated_s", "timeline_s", "datasheet_s")
    for _, run in kept.of("device_model"):
        found = run.results["steps"]
        rows += [
            Row(f"{it['name']}@{it['preset']}", f"{it['name']}, {it['preset'].removeprefix('dgx-').upper()}",
                (step(it["measured_s"]), *(ratio(it[key] / it["measured_s"]) if it[key] else NONE for key in keys),
                 *(_priced(it["by_kind_s"].get(kind)) for kind in KINDS),
                 ratio(it["predicted_peak_bytes"] / it["peak_bytes"])),
                (run,))
            for it in found
        ]  # fmt: skip
        by_search, by_calibrated, by_timeline, by_datasheet = (
            Errors.of([abs(it[key] / it["measured_s"] - 1) for it in found if it[key]]) for key in keys
        )
        facts += [
            Fact("steps", "steps that ran on a GPU", str(len(found))),
            Fact("search-median", "distance of the search over measured from one, median", f"{by_search.median:.1%}"),
            Fact("search-p90", "90th percentile of it", f"{by_search.p90:.1%}"),
            Fact("calibrated-steps", "steps on a GPU of a kind that was calibrated", str(by_calibrated.count)),
            Fact("calibrated-median", "distance of the search with that, median", f"{by_calibrated.median:.1%}"),
            Fact("calibrated-p90", "90th percentile of it", f"{by_calibrated.p90:.1%}"),
            Fact("median", "the same of the timeline, median", f"{by_timeline.median:.1%}"),
            Fact("p90", "90th percentile of it", f"{by_timeline.p90:.1%}"),
            Fact("datasheet-median", "the same of the datasheet's roofline, median", f"{by_datasheet.median:.1%}"),
        ]
    columns = (
        ("measured", "measured"), ("search", "search over measured"), ("calibrated", "search with a calibration"),
        ("ratio", "timeline over measured"),
        ("datasheet", "datasheet over measured"), ("product", "timeline's products"), ("kernel", "attention"),
        ("moves", "other kernels"), ("peak", "peak predicted over measured"),
    )  # fmt: skip
    return Section(
        "device_model", ("device_model",), "Steps on a GPU",
        "Training steps of the examples that `rhino.parallelize` planned, compiled and ran on one H100 and one H200: "
        "seconds that the search predicts, by the preset and by a calibration of an H100, and those of the timeline of "
        "XLA's program, over measured ones, in all and by kind of kernel; and memory. Programs and times of kernels "
        "are in `bench/data/gpu_steps`; `python -m bench.gpu` measures where there is a GPU. The share of products is "
        "the preset's, chosen over published runs of many GPUs: one alone is faster. The measured peak has cuDNN's "
        "workspaces while it chose among kernels.",
        (ResultTable("step", columns, tuple(rows)),), tuple(facts),
    )  # fmt: skip


def _priced(seconds: Sequence[float] | None) -> str:
    return ratio(seconds[0] / seconds[1]) if seconds and seconds[1] else NONE


def cpu_mesh(kept: Kept) -> Section:
    """Measured steps of found and of expert plans."""
    rows, facts = [], []
    for _, run in kept.of("cpu_mesh"):
        for r in run.results["models"]:
            times = {name: plan["step_time_s"]["median"] for name, plan in r["plans"].items()}
            experts = {name: t for name, t in times.items() if name != FOUND}
            best, worst = (pick(experts, key=experts.__getitem__, default=None) for pick in (min, max))
            rows.append(Row(
                r["case"], f"{r['case'].replace('_', '-')}, {r['params'] / 1e6:.1f} M parameters",
                (step(times.get(FOUND)), _named(best, experts), ratio(r["summary"]["found_over_best"]),
                 _named(worst, experts), ratio(r["summary"]["spearman"])),
                (run,),
            ))  # fmt: skip
        facts += [
            Fact("found-over-best", "found over best expert, worst of the models",
                 ratio(run.results["found_over_best"])),
            Fact("spearman", "rank correlation of predicted and measured times over all plans of all models",
                 ratio(run.results["spearman"])),
        ]  # fmt: skip
    columns = (
        ("found", "plan found"), ("best", "best expert"), ("ratio", "found over best"), ("worst", "slowest expert"),
        ("spearman", "rank correlation"),
    )  # fmt: skip
    return Section(
        "cpu_mesh", ("cpu_mesh",), "Steps on virtual CPU devices",
        "Training steps under all plans of a model on 8 virtual CPU devices that share this machine's cores, in turns; "
        "medians. The machine is calibrated first. The rank correlation is that of predicted and measured times.",
        (ResultTable("model", columns, tuple(rows)),), tuple(facts),
    )  # fmt: skip


def cpu_hosts(kept: Kept) -> Section:
    """Steps of found and of expert plans over hosts, predicted and measured."""
    rows, facts = [], []
    for run, r in [(kept_run, case) for _, kept_run in kept.of("cpu_hosts") for case in kept_run.results["cases"]]:
        times = {name: plan["step_time_s"]["median"] for name, plan in r["plans"].items()}
        experts = {name: t for name, t in times.items() if name != FOUND}
        best, worst = (pick(experts, key=experts.__getitem__, default=None) for pick in (min, max))
        name, mbits = r["case"].split("@")
        found = r["summary"]
        rows.append(Row(
            r["case"], f"{name}, {r['params'] / 1e6:.1f} M parameters, {int(mbits):,} Mbit/s",
            (step(times.get(FOUND)), ratio(found["found_predicted_over_measured"]), _named(best, experts),
             ratio(found["found_over_best"]), _named(worst, experts), f"{found['median_error']:.1%}",
             ratio(found["spearman"])),
            (run,),
        ))  # fmt: skip
    for part, run in kept.of("cpu_hosts"):
        totals = run.results
        facts += [
            Fact(f"found-over-best-{part.name}", f"found over best expert, worst of the models, {part.label}",
                 ratio(totals["found_over_best"])),
            Fact(f"error-{part.name}", f"distance of predicted over measured from one, median over plans, {part.label}",
                 f"{totals['median_error']:.1%}"),
            Fact(f"spearman-{part.name}", f"rank correlation over all plans of all models, {part.label}",
                 ratio(totals["spearman"])),
        ]  # fmt: skip
    columns = (
        ("found", "plan found"), ("predicted", "predicted over measured"), ("best", "best expert"),
        ("ratio", "found over best"), ("worst", "slowest expert"), ("error", "error over plans, median"),
        ("spearman", "rank correlation"),
    )  # fmt: skip
    return Section(
        "cpu_hosts", ("cpu_hosts",), "Training over hosts",
        "Training steps under all plans of a model over four network namespaces with two CPU devices each, joined by "
        "shaped links, in turns; medians. All eight devices share this machine's cores. The job calibrates its own "
        "cluster first, as `rhino cluster calibrate --job` does.",
        (ResultTable("model", columns, tuple(rows)),), tuple(facts),
    )  # fmt: skip


def _named(plan: str | None, times: Mapping[str, float]) -> str:
    return NONE if plan is None else f"{step(times[plan])}, {plan}"


def train_cpu(kept: Kept) -> Section:
    """A GPT's steps under three regimes."""
    rows = [
        Row(
            name, name,
            (step(r["step_time_s"]["median"]), memory(r["argument_bytes"]), memory(r["temp_bytes"]),
             sent(r["comm_bytes"])),
            (run,),
        )
        for _, run in kept.of("train_cpu")
        for name, r in run.results["ways"].items()
    ]  # fmt: skip
    columns = (("step", "step"), ("arguments", "arguments"), ("temporaries", "temporaries"), ("sent", "sent"))
    return Section(
        "train_cpu", ("train_cpu",), "A GPT on virtual CPU devices",
        "Steps of a GPT of 10 M parameters on 8 virtual CPU devices: the plan found, data parallelism written by "
        "hand, and one device that has all the cores; per device. The devices share the cores, so no plan can beat "
        "one device: what shows is what a plan adds, and the memory that it saves.",
        (ResultTable("way", columns, tuple(rows)),),
    )  # fmt: skip


def pipeline(kept: Kept) -> Section:
    """What pipelines add, and whether they last as simulated."""
    overheads, simulated = [], []
    for _, run in kept.of("pipeline"):
        for r in run.results["overhead"]:
            seconds = r["seconds"]
            overheads.append(Row(
                r["case"], r["case"],
                (str(r["tasks"]), step(seconds["pipeline"]["median"]), step(seconds["fragments"]["median"]),
                 ratio(r["over_fragments"]), ratio(r["over_plain"])),
                (run,),
            ))  # fmt: skip
        for r in run.results["simulation"]:
            for name, found in r["schedules"].items():
                simulated.append(Row(
                    f"{r['case']} {name}", f"{r['case']}, {name}",
                    (step(found["simulated_s"]), step(found["measured_s"]["median"]),
                     ratio(found["measured_over_simulated"])),
                    (run,),
                ))  # fmt: skip
    return Section(
        "pipeline", ("pipeline",), "Pipelines in one process",
        "First all stages of a pipeline on one CPU device, against its fragments called back to back and against "
        "plain `jax.jit`. Then two stages on two devices, measured against the simulator with the seconds that each "
        "fragment and transfer took in the same run.",
        (
            ResultTable(
                "pipeline",
                (("tasks", "tasks"), ("step", "step"), ("fragments", "fragments alone"),
                 ("over_fragments", "step over fragments"), ("over_plain", "step over `jax.jit`")),
                tuple(overheads),
            ),
            ResultTable(
                "pipeline",
                (("simulated", "simulated"), ("measured", "measured"), ("ratio", "measured over simulated")),
                tuple(simulated),
            ),
        ),
    )  # fmt: skip


def pipeline_multihost(kept: Kept) -> Section:
    """Pipelines over hosts."""
    rows = []
    for label, run, r in cases(kept, "pipeline_multihost", "models"):
        base = r["ways"][BASE]
        for way, found in r["ways"].items():
            seconds = found["seconds"]["median"]
            rows.append(Row(
                f"{r['case']} {way}", f"{label}, {way}",
                (clock(seconds), clock(found["simulated_s"]), ratio(found["measured_over_simulated"]),
                 ratio(base["seconds"]["median"] / seconds), ratio(base["simulated_s"] / found["simulated_s"])),
                (run,),
            ))  # fmt: skip
    columns = (
        ("measured", "step"), ("simulated", "simulated"), ("ratio", "ratio"), ("faster", f"times as fast as {BASE}"),
        ("faster_simulated", "as simulated"),
    )  # fmt: skip
    return Section(
        "pipeline_multihost", ("pipeline_multihost",), "Pipelines over hosts",
        "Steps in four stages on four hosts, by schedule and by how tensors travel. Hosts are network namespaces of "
        "one machine with links of 25 Mbit/s. Transfers and losses are real; most of the time of computing is made by "
        "sleeping.",
        (ResultTable("model, schedule and transfers", columns, tuple(rows)),),
    )  # fmt: skip


def resharding(kept: Kept) -> Section:
    """Transfers between meshes over the bound of the network."""
    rows = []
    for label, run, r in cases(kept, "resharding"):
        over = [r["ways"].get(way, {}).get("over_bound") for way in WAY_NAMES]
        rows.append(Row(r["case"], label, (clock(r["bound_s"]), *map(ratio, over)), (run,)))
    columns = (("bound", "lower bound"), *((slug(way), way) for way in WAY_NAMES))
    return Section(
        "resharding", ("resharding",), "Resharding",
        "A tensor of 64 MiB goes from one mesh to another over links of 200 Mbit/s between network namespaces. Each "
        "cell is the best round's time over the lower bound of the network.",
        (ResultTable("from and to", columns, tuple(rows)),),
    )  # fmt: skip


def startup(kept: Kept) -> Section:
    """How fast tools start."""
    rows = tuple(
        Row(
            r["name"], r["name"] if ", " in r["name"] else f"`{r['name']}`",
            (clock(r["wall_s"]["median"]), clock(r["cpu_s"]["median"]), memory(r["peak_rss_bytes"])), (run,),
        )
        for _, run in kept.of("startup")
        for r in run.results["commands"]
    )  # fmt: skip
    return Section(
        "startup", ("startup",), "Start-up",
        "How fast `rhino-opt` starts, and reads and prints a module, beside Python, jax and jaxlib's own parser and "
        "printer on the same file. Medians of interleaved rounds.",
        (ResultTable("command", (("wall", "time"), ("cpu", "CPU time"), ("memory", "peak memory")), rows),),
    )  # fmt: skip
