"""The steps of published runs as the search sees them: lowered, normalised, cut into micro-batches; and what computes.

Owns the way from a model to a graph. Prices nothing.
"""

from __future__ import annotations

import functools
import io
from dataclasses import replace
from typing import Any

from bench._published_models import Model
from examples.export import lower
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.ir.scans.layers import split_scans
from rhino.ir.session import Session
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.passes.plan.plan_sharding import PlanSharding
from rhino.passes.registry import PassPipeline, build
from rhino.program.data import Graph, Op
from rhino.program.operations import CONTRACTIONS

# BatchNorm of a micro-batch, as it is in every published run with micro-batches.
_STATISTICS = {"wide_resnet": "micro-batch", "convnet": "micro-batch"}


@functools.lru_cache(maxsize=4)
def _module(model: Model, batch: int, target: str) -> bytes:
    """The step as StableHLO, lowered for a GPU that need not be here."""
    step, inputs = model.step(batch)
    buffer = io.BytesIO()
    lower(step, *inputs, platform=target).operation.write_bytecode(buffer)
    return buffer.getvalue()


def whole(model: Model, batch: int, cluster: Cluster) -> Graph:
    """The step as one program, without micro-batches."""
    return import_graph(_normalised(model, batch, cluster, strided=True))


def looped(model: Model, batch: int, slices: int, cluster: Cluster, pieces: int = 1) -> Graph:
    """The step as a loop over so many micro-batches; its loop over layers, if any, as so many of equal length.

    Raises:
      RhinoError: it cannot be cut so.
    """
    module = _normalised(model, batch, cluster, strided=False)
    if pieces > 1:
        split_scans(module, pieces)
    programs = SplitPrograms(to_bytecode(module), batch, pieces, _STATISTICS.get(model.module, "batch"))
    return import_graph(programs.module(slices))


def _normalised(model: Model, batch: int, cluster: Cluster, strided: bool) -> Any:
    """What `rhino-auto` runs before it plans one program; before a pipeline it does not expose strided dimensions."""
    module = parse_bytes(_module(model, batch, cluster.device.xla_target), make_context())
    manager = PassManager(module.context)
    auto = build("rhino-auto", [("topology", ""), ("stages", "1")])
    assert isinstance(auto, PassPipeline)
    for part in auto.expand():
        if isinstance(part, PlanSharding):
            break
        if strided or getattr(part, "name", "") != "rhino-expose-strided-dims":
            manager.add(part)
    manager.run(module, session=Session(cluster))
    return module


def kind_of(op: Op) -> str:
    """What an operation is: products, attention, or memory, which is all the rest."""
    if op.kernel is not None:
        return "attention" if op.kernel.rate.startswith("attention") else "products"
    if op.name not in CONTRACTIONS:
        return "memory"
    if op.rule is None:
        return "products"
    # Of scores every example and every head has its own.
    read = [{f for dim in mapping for f in dim} for mapping in (*op.rule.operands[:2], op.rule.results[0])]
    return "attention" if len(set.intersection(*read)) > 1 else "products"


def ring_attention(graph: Graph) -> None:
    """Lets fused attention split its queries' positions, as context parallelism does (arXiv 2310.01889).

    Keys and values then come from everywhere, as many bytes in a ring as in an all-gather, and their gradients are
    sums. The mask's work is dealt evenly.
    """
    for op in graph.ops:
        if op.kernel is None or op.rule is None or not op.kernel.rate.startswith("attention"):
            continue
        rule = op.rule
        positions = rule.operands[0][1]
        sums = () if op.kernel.rate == "attention" else positions
        whole = tuple(f for f in rule.replicate if f not in positions)
        op.rule = replace(rule, replicate=whole, reduction=(*rule.reduction, *sums))
