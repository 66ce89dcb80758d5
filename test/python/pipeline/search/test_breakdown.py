"""Seconds by op add up to what the search predicts for the whole program."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import export
from rhino.experts.planning import ExpertProgram
from rhino.machine import Cluster
from rhino.pipeline.search.breakdown import op_breakdown, stage_traffic
from rhino.plan.module import parse_module
from rhino.sharding import Options, plan_sharding


@pytest.mark.parametrize(
    ("scan", "cluster"), [(False, "dgx-h100:1"), pytest.param(True, "p3.16xlarge:2", marks=pytest.mark.long)]
)
def test_sums_are_those_of_the_prediction(tmp_path: Path, scan: bool, cluster: str) -> None:
    path = tmp_path / "gpt.mlir"
    # Large enough that splitting it pays.
    export.main(["gpt", "--batch", "256", "--set", "width=1024", "--scan" if scan else "--no-scan", "-o", str(path)])
    graph = ExpertProgram.of(parse_module(path.read_text(), "gpt"), cluster).graph
    found = plan_sharding(graph, Cluster.load(cluster), Options())
    seconds = op_breakdown(found.costs, found.states)
    predicted = found.predicted
    assert predicted.comm_s > 0
    # What the host takes to bring the batch is no op's.
    assert sum(seconds.compute) == pytest.approx(predicted.compute_s, rel=1e-2)
    assert sum(seconds.comm) + sum(seconds.hideable) == pytest.approx(predicted.comm_s + predicted.hidden_s)
    whole = stage_traffic(found.costs, found.states, [0] * len(graph.ops), 1)[0]
    assert {kind: round(nbytes) for kind, (nbytes, _) in whole.items()} == pytest.approx(predicted.comm_bytes, abs=1)
    assert {kind: count for kind, (_, count) in whole.items()} == predicted.collectives
    assert 0 <= sum(seconds.late) <= sum(seconds.comm) + sum(seconds.hideable)
