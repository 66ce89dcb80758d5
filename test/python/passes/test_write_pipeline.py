"""What the joint search priced is what is written: no layout is searched again, and none is another one."""

from __future__ import annotations

from typing import Any

import pytest
from test_read_layouts import program_of

from rhino.passes.pass_manager import PassManager
from rhino.passes.plan import plan_pipeline, write_pipeline
from rhino.pipeline.search import sharded
from rhino.sharding import Solution

PLAN = "builtin.module(rhino-plan-pipeline{{topology={cluster} stages={stages} microbatches=4 schedule=1f1b}})"


# In four stages gradients and scalars are sums of several stages' parts, which each adds up for itself.
@pytest.mark.parametrize(
    ("name", "changes", "cluster", "stages", "split"),
    [
        ("gpt", {"tied": True, "scan": True, "remat": True}, "dgx-h100:1", 4, True),
        ("mlp", {}, "dgx-h100:1", 3, True),  # stages of 3, 3 and 2 devices
    ],
    ids=("gpt", "mlp"),
)
def test_the_layouts_that_were_priced_are_written(
    name: str, changes: dict[str, Any], cluster: str, stages: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Solution, Solution, dict[int, int]]] = []
    carried, write = write_pipeline.carried, write_pipeline.write_pipeline

    def watched(*arguments: Any) -> Solution:
        found = carried(*arguments)
        seen.append((arguments[-2].solution, found, arguments[-1]))
        return found

    def written(*arguments: Any) -> None:
        monkeypatch.setattr(sharded, "MeshSearch", None)  # whoever searches now fails
        write(*arguments)

    monkeypatch.setattr(write_pipeline, "carried", watched)
    monkeypatch.setattr(plan_pipeline, "write_pipeline", written)
    module = program_of(name, **changes)
    PassManager.parse(PLAN.format(cluster=cluster, stages=stages), module.context).run(module)
    assert seen
    for priced, found, ops in seen:
        before, after = priced.problem.graph, found.problem.graph
        assert (len(ops) < len(after.ops)) is split
        for index, was in ops.items():
            for v, u in zip(after.ops[index].results, before.ops[was].results, strict=False):
                assert found.dims(v) == priced.dims(u)
            if was in priced.op_nodes:
                assert found.factors(index) == priced.factors(was) if before.ops[was].rule else True
        given = [(a.value, b.value) for a, b in zip(after.arguments, before.arguments, strict=True)]
        assert all(found.dims(v) == priced.dims(u) for v, u in given)
