"""Megatron-LM's grid by hand: every shape of it, its layout forced on each stage, and never better than the search."""

from __future__ import annotations

import dataclasses
from math import inf

import pytest

from examples import export
from examples.models import gpt
from rhino.experts.pipelines import PipelineTrial, cheapest, megatron_3d
from rhino.ir.microbatch.programs import SplitPrograms
from rhino.machine import Cluster
from rhino.passes.pass_manager import PassManager
from rhino.pipeline.search.options import JointOptions
from rhino.pipeline.search.search import plan_jointly
from rhino.plan.module import parse_module

CLUSTER = Cluster.load("dgx-a100:1")


@pytest.fixture(scope="module")
def programs() -> SplitPrograms:
    config = dataclasses.replace(gpt.PRESETS["tiny"], layers=4, width=256, heads=8, scan=False)
    _, step = gpt.make_train_step(config)
    module = parse_module(str(export.lower(step, *gpt.abstract_inputs(config, 32))), "gpt")
    manager = PassManager(module.context)
    for name in ("rhino-inline", "symbol-dce", "canonicalize", "rhino-classify-args"):
        manager.add(name)
    manager.run(module)
    return SplitPrograms.of(module, "O1")


@pytest.fixture(scope="module")
def trials(programs: SplitPrograms) -> list[PipelineTrial]:
    return megatron_3d(programs, CLUSTER, parts=(8, 16))


def test_the_grid_is_every_product_of_stages_tensor_and_data_parallelism(trials: list[PipelineTrial]) -> None:
    grid = [t.shape for t in trials if t.shape.chunks == 1]
    shapes = {(shape.stages, shape.width, shape.replicas, shape.parts) for shape in grid}
    every = {
        (stages, width, 8 // (stages * width), parts)
        for stages in (2, 4, 8)
        for width in (1, 2, 4, 8)
        for parts in (8, 16)
        if stages * width <= 8 and parts // (8 // (stages * width)) >= stages
    }
    assert shapes == every
    assert len(grid) == len(every)


def test_the_fastest_are_tried_with_interleaved_stages(trials: list[PipelineTrial]) -> None:
    grid = {t.shape: t for t in trials if t.shape.chunks == 1}
    more = [t for t in trials if t.shape.chunks > 1]
    assert more
    fastest = min(t.step_time_s for t in grid.values() if t.fits)
    for trial in more:
        assert grid[dataclasses.replace(trial.shape, chunks=1)].step_time_s <= 1.1 * fastest
        assert trial.shape.groups * trial.shape.chunks == trial.shape.stages


def test_each_fits_or_says_why_not(programs: SplitPrograms, trials: list[PipelineTrial]) -> None:
    planned = [t for t in trials if t.candidate is not None]
    assert planned
    for trial in planned:
        assert trial.fits
        assert trial.candidate is not None
        assert trial.candidate.schedule.name == ("1f1b" if trial.shape.chunks == 1 else "interleaved-1f1b")
        assert trial.candidate.stages.stages == trial.shape.stages
    for trial in trials:
        if trial.candidate is None:
            assert (trial.step_time_s, trial.fits) == (inf, False)
            assert trial.why
    least = min(t.candidate.peak_bytes for t in planned if t.candidate)
    small = megatron_3d(programs, CLUSTER, parts=(8,), stages=(2,), tensor=(4,), memory_limit=least // 8)
    (none,) = small
    assert none.candidate is not None
    assert not none.fits
    assert none.why.startswith("needs ")
    assert cheapest(small) is none


def test_the_cheapest_is_the_fastest_that_fits(trials: list[PipelineTrial]) -> None:
    best = cheapest(trials)
    assert best is not None
    assert best.step_time_s == min(t.step_time_s for t in trials if t.fits) < inf
    assert cheapest([]) is None


def test_weights_are_split_by_columns_and_rows_in_turn(trials: list[PipelineTrial]) -> None:
    trial = next(t for t in trials if t.shape.width == 4 and t.candidate)
    assert trial.candidate is not None
    graph, solution = trial.candidate.prepared.graph, trial.candidate.layout_of(0).solution
    found = {}
    for argument in graph.arguments:
        shape = graph.values[argument.value].shape
        if argument.role == "param" and "mlp" in argument.name and len(shape) == 2:
            found[argument.name] = (shape, solution.dims(argument.value))
    up = [dims for shape, dims in found.values() if shape[0] < shape[1]]
    down = [dims for shape, dims in found.values() if shape[0] > shape[1]]
    assert len(up) == len(down) == 4
    assert set(up) == {((), ("x",))}
    assert set(down) == {(("x",), ())}


def test_the_joint_search_is_no_worse(programs: SplitPrograms, trials: list[PipelineTrial]) -> None:
    best = cheapest(trials)
    assert best is not None
    assert plan_jointly(programs, CLUSTER, JointOptions()).best.step_time_s <= best.step_time_s
