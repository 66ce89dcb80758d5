"""A plan of stages written into a micro-batched step: `rhino.stage`, and sums that each stage makes its own part of.

Owns the marks. Decides nothing.
"""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoStage
from rhino.ir.import_graph import number_program
from rhino.ir.pipeline.split_sums import regroup_scalars, split_gradients
from rhino.pipeline.cut import StagePlan
from rhino.program.data import Graph


def write_stages(module: ir.Module, graph: Graph, plan: StagePlan) -> None:
    """Writes a plan into the module its graph was imported from; parts of sums get accumulators of their own."""
    main = functions.find(module, "main")
    assert main is not None
    values, ops = number_program(main)
    marks: dict[tuple[int, str], Any] = {}

    def mark(stage: int, phase: str) -> ir.Attribute:
        if (stage, phase) not in marks:
            marks[stage, phase] = RhinoStage.to_attr({"stage": stage, "phase": phase}, module.context)
        return marks[stage, phase]

    for op, record in zip(ops, graph.ops, strict=True):
        if record.parent in (-1, graph.microbatch_loop) and plan.stage_of_op[record.index] >= 0:
            op.attributes[RhinoStage.name] = mark(plan.stage_of_op[record.index], plan.phase_of_op[record.index])
    regroup_scalars(plan.combinations, values, ops, mark)
    if plan.sums:
        split_gradients(graph, plan, values, ops, mark)
