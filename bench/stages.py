"""Stages of real steps: the best cut of the graph against the best cuts of single topological orders of it.

    python -m bench.stages [--only CASE ...] [--orders N] [--quick] [--json FILE|-]

Published systems put the layers into one order and cut that. Here the same units, with the same seconds and bytes, are
cut in program order, in the best of many orders, and by `rhino.pipeline.cut`, which proves how good its cut is.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any

from bench._common import BenchError, Table, main, measure_and_publish, note, parser, select


@dataclass(frozen=True, slots=True)
class Case:
    """A model, how it is divided, and the cluster. `settings` replace fields of the preset's configuration."""

    model: str
    preset: str
    stages: int
    cluster: str = "dgx-h100:2"
    batch: int = 64
    microbatches: int = 32
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Short and unique."""
        more = "".join(f"-{key}{value}" for key, value in self.settings)
        return f"{self.model}-{self.preset}{more}@{self.stages}"


_GPT48 = (("layers", 48),)
CASES: tuple[Case, ...] = (
    *(Case("gpt", "1.3b", n, settings=_GPT48) for n in (4, 8, 16)),
    *(Case("t5", "large", n) for n in (4, 8)),
    *(Case("unet", "adm-64", n, batch=256) for n in (4, 8)),
    *(Case("two_tower", "wide", n) for n in (2, 4, 8)),
)
QUICK: tuple[Case, ...] = (
    Case("gpt", "tiny", 2, "dgx-h100:1", 8, 4),
    Case("two_tower", "small", 2, "dgx-h100:1", 8, 4),
)


def lowered(case: Case) -> str:
    """The step as StableHLO text."""
    import dataclasses

    from examples import export

    if case.model == "two_tower":
        from bench import _two_tower

        return str(export.lower(*_two_tower.step(case.preset, case.batch)))
    model = importlib.import_module(f"examples.models.{case.model}")
    config = dataclasses.replace(model.PRESETS[case.preset], **dict(case.settings))
    return str(export.lower(model.make_train_step(config)[1], *model.abstract_inputs(config, case.batch)))


def measure(case: Case, shuffles: int) -> dict[str, Any]:
    """One case: the problem, and its three answers."""
    from bench._stage_orders import orders
    from rhino.dialect.context import make_context, parse_text
    from rhino.ir.import_graph import import_graph
    from rhino.machine import Cluster
    from rhino.machine.roofline import op_seconds
    from rhino.passes.pass_manager import PassManager
    from rhino.pipeline.cut import best_linear_cut, plan_stages, prepare_step, stage_problem
    from rhino.pipeline.search.placement import Placement

    note(f"{case.name}: exporting")
    module = parse_text(lowered(case), make_context())
    passes = PassManager(module.context)
    for name in ("rhino-inline", "symbol-dce", "canonicalize", "rhino-classify-args"):
        passes.add(name)
    passes.add(f"rhino-split-microbatch{{count={case.microbatches}}}").run(module)
    graph = import_graph(module)
    cluster = Cluster.load(case.cluster)
    begin = time.process_time()
    ready = prepare_step(graph)
    loop = graph.ops[graph.microbatch_loop]
    given = op_seconds(graph, cluster)
    seconds = [s / case.microbatches if loop.index < i < loop.region_end else s for i, s in enumerate(given)]
    machine = Placement.of(cluster, case.stages).machine(graph.microbatches, "1f1b")
    _, problem = stage_problem(ready, seconds, [v.nbytes for v in graph.values], machine)
    read = time.process_time()
    ours = plan_stages(problem)
    solved = time.process_time()
    note(f"{case.name}: {ours.method}, {ours.status}, {solved - read:.2f} s")
    cuts = {}
    for name, order in orders(problem, shuffles):
        cut = best_linear_cut(problem, order)
        if cut is not None:
            cuts[name] = cut
    if not cuts:
        raise BenchError(f"{case.name}: no order has a cut")
    best = min(cuts, key=lambda name: cuts[name].objective_s)
    return {
        "case": case.name,
        "cluster": case.cluster,
        "ops": len(graph.ops),
        "units": len(problem.units),
        "stages": case.stages,
        "microbatches": case.microbatches,
        "step_s": ours.objective_s,
        "slowest_s": ours.evaluation.slowest_s,
        "mean_s": sum(ours.evaluation.stage_s) / case.stages,
        "transfer_s": ours.evaluation.transfer_s,
        "bound_s": ours.bound_s,
        "gap": ours.gap,
        "status": ours.status,
        "method": ours.method,
        "reading_cpu_s": read - begin,
        "solving_cpu_s": solved - read,
        "orders": len(cuts),
        "best_order": best,
        "best_order_s": cuts[best].objective_s,
        "program_order_s": cuts["program"].objective_s if "program" in cuts else None,
        "worst_order_s": max(cut.objective_s for cut in cuts.values()),
    }


def tables(results: list[dict[str, Any]]) -> list[Table]:
    """One line per case; other cuts relative to ours."""

    def more(seconds: float | None, ours: float) -> str:
        return "none" if seconds is None else f"{100 * (seconds / ours - 1):+.2f}%"

    rows = tuple(
        (
            r["case"],
            f"{r['ops']:,}",
            str(r["units"]),
            f"{1e3 * r['step_s']:.2f}",
            f"{r['slowest_s'] / r['mean_s']:.3f}",
            more(r["program_order_s"], r["step_s"]),
            more(r["best_order_s"], r["step_s"]),
            more(r["worst_order_s"], r["step_s"]),
            f"{100 * r['gap']:.4f}%",
            r["status"],
            r["method"],
            f"{r['reading_cpu_s']:.2f}",
            f"{r['solving_cpu_s']:.2f}",
        )
        for r in results
    )
    columns = ("model@stages", "ops", "units", "step ms", "slowest/mean", "program order", "best order", "worst order",
               "gap", "status", "method", "reading CPU s", "solving CPU s")  # fmt: skip
    title = f"Stages: ours, and the best cuts of single orders ({results[0]['orders']} orders each) against it"
    return [Table(title, columns, rows)]


def body() -> None:
    """Measure and print."""
    p = parser("bench.stages", __doc__)
    p.add_argument("--only", nargs="+", metavar="TEXT", help="only the cases whose name contains one of these")
    p.add_argument("--orders", type=int, help="shuffled orders besides program, depth-first and breadth-first")
    args = p.parse_args()
    shuffles = args.orders if args.orders is not None else (2 if args.quick else 17)
    cases = select(QUICK if args.quick else CASES, args.only)
    measure_and_publish("stages", args, cases, lambda case: measure(case, shuffles), tables)


if __name__ == "__main__":
    main(body)
