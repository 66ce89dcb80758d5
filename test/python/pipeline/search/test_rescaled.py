"""What is told of a program cut into some number of parts is what is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from joint_programs import programs

from rhino.ir.microbatch.programs import SplitPrograms
from rhino.machine import Cluster
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.rescaled import RescaledPrograms, rescaled
from rhino.pipeline.search.search import plan_jointly
from rhino.pipeline.search.sharded import Prepared
from rhino.pipeline.search.solution import JointSolution, Programs
from rhino.pipeline.search.ways import plan_ways
from rhino.program import Graph
from rhino.program.recomputation import KEEP


@pytest.fixture(scope="module")
def step() -> SplitPrograms:
    return programs(4, batch=64, width=16)


def graph(step: SplitPrograms, parts: int) -> Graph:
    prepared = step.prepared(parts)
    assert prepared is not None
    return prepared.graph


@pytest.mark.parametrize("parts", [4, 8, 16])
def test_between_two_programs_it_is_the_one_that_is_made(step: SplitPrograms, parts: int) -> None:
    assert rescaled(graph(step, 2), graph(step, 32), parts) == graph(step, parts)


def test_what_is_too_unlike_is_not_told(step: SplitPrograms) -> None:
    # Parts of one example are written in another way, and three parts do not divide the batch.
    assert rescaled(graph(step, 2), graph(step, 64), 8) is None
    assert rescaled(graph(step, 2), graph(step, 32), 3) is None
    other = graph(programs(5, batch=64, width=16), 32)
    assert rescaled(graph(step, 2), other, 8) is None
    wider = graph(programs(4, batch=64, width=17), 32)
    assert rescaled(graph(step, 2), wider, 8) is None


def test_few_programs_are_made() -> None:
    step = programs(4, batch=64, width=16)
    derived = RescaledPrograms(step)
    assert all(derived.prepared(n) is not None for n in (2, 32, 4, 8, 16))
    assert (sorted(derived.made), sorted(derived.derived)) == ([2, 32, 64], [4, 8, 16])
    assert derived.derived_truly(8)
    assert derived.prepared(3) is None
    assert derived.refusal(3) is not None


class Untrue(RescaledPrograms):
    """Tells programs that compute nothing."""

    def __init__(self, programs: Programs) -> None:
        super().__init__(programs)
        for parts in (2, 256):
            assert super().prepared(parts) is not None

    def prepared(self, parts: int) -> Prepared | None:
        """As it is, but for what ops count."""
        found = super().prepared(parts)
        if found is not None and parts in self.derived:
            idle = [replace(op, flops=0, rule=None) for op in found.graph.ops]
            graph = replace(found.graph, ops=idle)
            problem = replace(found.problem, graph=graph)
            found = self.derived[parts] = replace(found, graph=graph, problem=problem)
        return found


class AsItIs:
    """A step with one way."""

    ways = (KEEP,)

    def __init__(self, step: SplitPrograms) -> None:
        self.step = step

    def base(self, way: int) -> Graph:
        return self.step.uncut_graph

    def programs(self, way: int) -> SplitPrograms:
        return self.step


def alone(step: SplitPrograms, cluster: Cluster, options: JointOptions) -> JointSolution:
    """The search of that one way."""
    return plan_ways(AsItIs(step), cluster, options)[1]


@pytest.mark.parametrize("plan", [plan_jointly, alone])
def test_a_plan_of_what_was_told_wrongly_is_not_taken(
    plan: Callable[[SplitPrograms, Cluster, JointOptions], JointSolution], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, options = Cluster.load("dgx-h100:1"), JointOptions(stages=2, microbatches=4)
    # So large that its products take longer than their start.
    expected = plan(programs(4, batch=8192, width=8192), cluster, options).best.step_time_s
    monkeypatch.setattr("rhino.pipeline.search.search.RescaledPrograms", Untrue)
    assert plan(programs(4, batch=8192, width=8192), cluster, options).best.step_time_s == expected
    # Unchecked it would be.
    monkeypatch.setattr(Untrue, "derived_truly", lambda self, parts: True)
    assert plan(programs(4, batch=8192, width=8192), cluster, options).best.step_time_s != expected
