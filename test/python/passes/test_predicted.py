"""The search's answer is what rhino-estimate says of the written module, to the last bit, and follows from its text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jaxlib.mlir import ir
from test_read_layouts import program_of

from rhino.dialect.attributes import RhinoCost, RhinoMemory, RhinoMulticast, RhinoPlan
from rhino.dialect.context import make_context, parse_text
from rhino.errors import RhinoError
from rhino.ir.diagnostics import Diagnostic, PassLog
from rhino.ir.pipeline.predicted import predict_pipeline
from rhino.ir.pipeline.program import fragment_ops, read_program, transfer_ops
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.passes.plan.estimate import Estimate
from rhino.passes.plan.plan_pipeline import PlanPipeline
from rhino.passes.stage.schedule import Schedule
from rhino.pipeline.search.solution import JointSolution

HOSTS = "p3.16xlarge:2"


def planned(name: str, cluster: str, changes: dict[str, Any], **options: Any) -> tuple[ir.Module, JointSolution]:
    """A model's module as it is written, read back from its text; and the search's answer."""
    answers: list[JointSolution] = []

    class Watched(PlanPipeline):
        def run(self, module: ir.Module, log: PassLog) -> None:
            answers.append(self.plan(module, log))

    module = program_of(name, **changes)
    PassManager(module.context).add(Watched(topology=cluster, **options)).run(module)
    return parse_text(str(module), module.context), answers[0]


def remarks(module: ir.Module, cluster: str) -> list[str]:
    """What rhino-estimate says."""
    said: list[Diagnostic] = []
    Estimate(topology=cluster).run(module, PassLog(said.append, module.operation.location))
    return [d.message for d in said if d.severity == "remark"]


CASES = [
    pytest.param("gpt", HOSTS, {}, {"stages": 2, "microbatches": 4}, marks=pytest.mark.long),
    pytest.param(
        "gpt",
        "dgx-h100:1",
        {"scan": True, "remat": True, "tied": True},
        {"stages": 4, "microbatches": 4},
        marks=pytest.mark.long,
    ),
    ("mlp", "dgx-h100:1", {}, {"stages": 3, "microbatches": 4}),  # of 3, 3 and 2 devices
    ("lstm", HOSTS, {}, {"stages": 2, "microbatches": 4}),
    pytest.param("moe", HOSTS, {"routing": "sort"}, {"stages": 2, "microbatches": 4}, marks=pytest.mark.long),
    pytest.param("gpt", HOSTS, {}, {"stages": 2, "microbatches": 4, "schedule": "zero-bubble"}, marks=pytest.mark.long),
    pytest.param("t5", HOSTS, {}, {"stages": 2, "microbatches": 4}, marks=pytest.mark.long),
    pytest.param("unet", HOSTS, {}, {"stages": 2, "microbatches": 4}, marks=pytest.mark.long),
    pytest.param("gpt", "p3.16xlarge:4", {}, {"stages": 4}, marks=pytest.mark.long),
    pytest.param("moe", "p3.16xlarge:4", {"scan": True}, {}, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "cluster", "changes", "options"), CASES)
def test_the_answer_is_the_estimate_of_what_is_written(
    name: str, cluster: str, changes: dict[str, Any], options: dict[str, Any]
) -> None:
    module, solution = planned(name, cluster, changes, **options)
    best = solution.best
    found = predict_pipeline(module, Cluster.load(cluster))
    assert found.simulation == best.simulation
    assert found.schedule == best.schedule
    data = RhinoPlan.of(module)
    assert data is not None
    assert data["predicted"]["step_time_s"] == best.step_time_s == found.simulation.step_time_s
    assert "host_s" not in data["predicted"]  # it would be that of one program
    assert data["predicted"]["peak_bytes"] == best.peak_bytes == max(found.peak_bytes)
    # Rows and task lists are all that a peak depends on.
    flight = found.simulation.in_flight_peak
    assert list(found.peak_bytes) == best.pipeline.peak_bytes(flight)
    said = remarks(module, cluster)
    assert re.search(rf"step {best.step_time_s * 1e6:.1f} us = .* peak {best.peak_bytes / 2**20:.2f} MiB", said[0])
    assert len(said) == 1 + best.shape.stages
    # What the search counted with differs in what is sent once a step: a message for each value, not for all together.
    searched, costs = best.pipeline.priced.costs(), best.pipeline.costs
    assert searched.forward_s == costs.forward_s
    assert len(searched.edges) == len(costs.edges)
    for a, b in zip(searched.edges, costs.edges, strict=True):
        assert (a.src, a.dst, a.forward_links, a.backward_links) == (b.src, b.dst, b.forward_links, b.backward_links)
        assert (a.forward_s, a.backward_s) == pytest.approx((b.forward_s, b.backward_s))
    once = sum(e.seconds for e in (*searched.exchanges, *costs.exchanges))
    assert abs(data["search"]["searched_s"] - best.step_time_s) <= once + 1e-9 * best.step_time_s


@pytest.fixture(scope="module")
def written() -> str:
    # Large enough that its kernels take longer than to start.
    return str(planned("mlp", HOSTS, {"width": 2048}, stages=2, microbatches=8, schedule="zero-bubble")[0])


def test_the_estimate_follows_the_text(written: str) -> None:
    cluster = Cluster.load(HOSTS)

    def again() -> ir.Module:
        return parse_text(written, make_context())

    step_s = predict_pipeline(again(), cluster).simulation.step_time_s
    peak = predict_pipeline(again(), cluster).peak_bytes

    module = again()
    Schedule(schedule="gpipe", topology=HOSTS).run(module, PassLog(lambda d: None, module.operation.location))
    other = predict_pipeline(module, cluster)
    assert other.simulation.step_time_s > step_s
    assert other.simulation.in_flight_peak == (other.program.microbatches,) * 2
    assert all(a > b for a, b in zip(other.peak_bytes, peak, strict=True))

    module = again()
    slow = next(f for f in read_program(module).fragments if f.kind == "update")
    op = fragment_ops(module)[slow.index]
    data = RhinoCost.of(op)
    assert data is not None
    RhinoCost.attach(op, {**data, "time_s": data["time_s"] + 1.0})
    assert 1.0 < predict_pipeline(module, cluster).simulation.step_time_s <= step_s + 1.0 + 1e-9

    module = again()
    for transfer in transfer_ops(module):
        plan = RhinoMulticast.of(transfer)
        assert plan is not None
        RhinoMulticast.attach(transfer, {**plan, "makespan_s": 2 * plan["makespan_s"]})
    assert predict_pipeline(module, cluster).simulation.step_time_s > step_s

    module = again()
    rows = RhinoMemory.of(module)
    assert rows is not None
    RhinoMemory.attach(module, [{**row, "update_bytes": 2**40} for row in rows])
    assert predict_pipeline(module, cluster).peak_bytes == tuple(2**40 + row["argument_bytes"] for row in rows)


def test_what_does_not_belong_together_is_refused(written: str) -> None:
    module = parse_text(written, make_context())
    rows = RhinoMemory.of(module)
    assert rows is not None
    RhinoMemory.attach(module, rows[:1])
    with pytest.raises(RhinoError, match=r"rhino\.memory has 1 stages, but the fragments are of 2"):
        predict_pipeline(module, Cluster.load(HOSTS))
    with pytest.raises(RhinoError, match=r"rhino\.placement has device 15, but cluster p3\.16xlarge:1 has 8"):
        predict_pipeline(parse_text(written, make_context()), Cluster.load("p3.16xlarge:1"))
    for count, message in (
        (99, r"rhino\.schedule has 99 micro-batches, but the loop has"),
        (3, r"rhino\.schedule\.tasks\[0\]\[\d+\]\.microbatch is 3, but there are 3 microbatches"),
    ):
        other = re.sub(r"(rhino\.schedule = \{microbatches = )\d+", rf"\g<1>{count}", written)
        with pytest.raises(RhinoError, match=message):
            predict_pipeline(parse_text(other, make_context()), Cluster.load(HOSTS))
