"""Pipelines that run: the values of the step on one device, buffers that are given back, and errors that say where."""

from __future__ import annotations

import gc
from typing import Any

import jax
import numpy as np
import pytest
import two_stages

from rhino.errors import RhinoError
from rhino.pipeline.schedule import PipelineCosts, ScheduledStep, make_schedule
from rhino.runtime import PipelineExecutable, build

COSTS = PipelineCosts.uniform(2, 1.0, 2.0, weight_s=1.0)


def schedule(name: str = "1f1b", microbatches: int = 4, **options: Any) -> ScheduledStep:
    return make_schedule(name, COSTS, microbatches, **options)


@pytest.fixture(scope="module")
def pipeline() -> PipelineExecutable:
    return build(two_stages.text(), schedule=schedule())


def close(found: list[Any], wanted: tuple[Any, ...]) -> None:
    for value, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["gpipe", "eager-1f1b", "kfkb"])
def test_every_schedule_gives_the_values_of_the_whole_step(name: str) -> None:
    pipeline = build(two_stages.text(), schedule=schedule(name))
    close(pipeline.run(two_stages.arguments()), two_stages.step(*two_stages.arguments()))


@pytest.mark.parametrize("delayed", [False, True])
def test_split_backward(delayed: bool) -> None:
    chosen = schedule("zero-bubble") if delayed else schedule()
    pipeline = build(two_stages.text(weight=True), schedule=chosen)
    close(pipeline.run(two_stages.arguments()), two_stages.step(*two_stages.arguments()))


def test_groups_of_several_devices(pipeline: PipelineExecutable) -> None:
    spread = build(two_stages.text(ways=4), schedule=schedule())
    assert spread.devices == 8
    results = spread.run(two_stages.arguments())
    close(results, two_stages.step(*two_stages.arguments()))
    assert [sorted(d.id for d in r.sharding.device_set) for r in results[:2]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    memory, alone = spread.memory_analysis(), pipeline.memory_analysis()
    assert all(group.peak_bytes < other.peak_bytes for group, other in zip(memory.groups, alone.groups, strict=True))
    assert {c.kind for c in spread.collectives()[0]} == {"all-reduce"}
    assert not any(pipeline.collectives())


def test_groups_are_where_the_placement_says() -> None:
    devices = jax.devices()[4:]
    pipeline = build(two_stages.text(placement="{stage0 = [3], stage1 = [1]}"), devices, schedule=schedule())
    w0, w1, _ = pipeline.run(two_stages.arguments())
    assert (w0.devices(), w1.devices()) == ({devices[3]}, {devices[1]})


@pytest.mark.usefixtures("only_new_objects")
def test_many_steps_keep_no_buffers(pipeline: PipelineExecutable) -> None:
    *weights, batch = pipeline.place(two_stages.arguments())
    wanted = two_stages.arguments()[:2]
    counts = []
    for index in range(50):
        *weights, loss = pipeline.run([*weights, batch])
        if index < 3:
            *wanted, expected = two_stages.step(*wanted, np.asarray(batch))
            close([*weights, loss], (*wanted, expected))
        loss.block_until_ready()
        gc.collect()
        counts.append(len(jax.live_arrays()))
    assert len(set(counts[1:])) == 1, counts


def test_donated_arguments_are_consumed_and_others_are_not(pipeline: PipelineExecutable) -> None:
    placed = pipeline.place(two_stages.arguments())
    pipeline.run(placed)
    assert [array.is_deleted() for array in placed] == [True, True, False]
    kept = build(two_stages.text(donate=False), schedule=schedule())
    placed = kept.place(two_stages.arguments())
    first, second = kept.run(placed), kept.run(placed)
    assert not any(array.is_deleted() for array in placed)
    close(first, tuple(map(np.asarray, second)))


def test_sums_are_updated_in_place(pipeline: PipelineExecutable) -> None:
    for fragment, executable in zip(pipeline.program.fragments, pipeline.compiled.executables, strict=True):
        if fragment.kind in ("backward", "update"):
            assert executable.memory_analysis().alias_bytes >= 8 * 32 * 4


def test_a_deleted_argument_is_named(pipeline: PipelineExecutable) -> None:
    placed = pipeline.place(two_stages.arguments())
    pipeline.run(placed)
    with pytest.raises(RhinoError, match=r"argument 0 of the step has been deleted.*use the state"):
        pipeline.run(placed)


def test_an_argument_of_another_shape_is_named(pipeline: PipelineExecutable) -> None:
    w0, w1, x = two_stages.arguments()
    with pytest.raises(RhinoError, match=r"argument 2 of the step is f32\[8,8\].*compiled for f32\[16,8\]"):
        pipeline.run([w0, w1, x[:8]])
    with pytest.raises(RhinoError, match="argument 1 of the step is f64"):
        pipeline.run([w0, w1.astype(np.float64), x])
    with pytest.raises(RhinoError, match="takes 3 arguments, and 2 were given"):
        pipeline.run([w0, w1])


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(RhinoError, match="groups need 2 devices, and 1 were given"):
        build(two_stages.text(), jax.devices()[:1], schedule=schedule())


def test_a_module_without_a_schedule_is_refused() -> None:
    with pytest.raises(RhinoError, match=r"no rhino.schedule; run rhino-schedule"):
        build(two_stages.text())


def test_a_fragment_that_xla_refuses_is_named() -> None:
    broken = two_stages.text().replace("%h = stablehlo.tanh %z :", "%h = stablehlo.custom_call @nowhere(%z) :")
    broken = broken.replace("@nowhere(%z) : tensor<4x32xf32>", "@nowhere(%z) : (tensor<4x32xf32>) -> tensor<4x32xf32>")
    try:
        pipeline = build(broken, schedule=schedule())
    except RhinoError as error:
        message = str(error)
    else:  # some versions find it only when they run it
        with pytest.raises(RhinoError) as caught:
            pipeline.profile(two_stages.arguments())
        message = str(caught.value)
    assert "forward of stage 0" in message
    assert "nowhere" in message


def test_a_fragment_that_fails_is_named(pipeline: PipelineExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [i for i, a in enumerate(pipeline.script.actions) if str(a.task) == "backward of stage 1, micro-batch 2"]

    def fails(table: list[Any]) -> None:
        raise RuntimeError("out of memory")

    operations = list(pipeline._operations)
    operations[calls[0]] = fails
    monkeypatch.setattr(pipeline, "_operations", operations)
    for run in (pipeline.run, pipeline.profile):
        with pytest.raises(RhinoError, match="failed in backward of stage 1, micro-batch 2: out of memory"):
            run(two_stages.arguments())


def test_profile_measures_every_task_and_consumes_nothing(pipeline: PipelineExecutable) -> None:
    placed = pipeline.place(two_stages.arguments())
    profile = pipeline.profile(placed, repeats=2)
    assert not any(array.is_deleted() for array in placed)
    assert all(len(timed.seconds) == 2 and min(timed.seconds) > 0 for timed in profile.actions)
    costs = profile.costs()
    assert costs.stages == 2
    assert min(*costs.forward_s, *costs.backward_s, *costs.apply_s) > 0
    (edge,) = costs.edges
    assert edge.forward_s is not None and edge.backward_s is not None
    assert profile.total_s() >= 4 * (sum(costs.forward_s) + sum(costs.backward_s)) / 2


@pytest.mark.parametrize(("name", "finished", "gradients"), [("gpipe", 15, 0), ("1f1b", 2, 1)])
def test_memory_counts_what_lists_keep(name: str, finished: int, gradients: int) -> None:
    text = two_stages.text(microbatches=16, batch=64)
    group = build(text, schedule=schedule(name, 16)).memory_analysis().groups[0]
    hidden, inputs, batch, weight = 4 * 32 * 4, 4 * 8 * 4, 64 * 8 * 4, 8 * 32 * 4
    # The last forward of gpipe and the first backward of 1F1B: what is saved, what arrived, the batch cut up, the sum.
    assert group.kept_bytes == finished * (hidden + inputs) + gradients * hidden + batch + weight
    assert group.argument_bytes == batch + weight
    assert group.peak_bytes == group.argument_bytes + group.kept_bytes + group.running_bytes
