"""`bench.device_model`: its data against physical limits, what is held out, and the record."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench import _device_collectives as collectives
from bench import _device_steps as ran
from bench._common import Errors
from bench._gpu_cases import CASES, planned
from rhino.machine import Cluster
from rhino.machine.protocols import ring_bytes
from rhino.pipeline.search.placement import part_of


def test_no_row_sends_faster_than_its_link() -> None:
    counted = 0
    for device, rows in collectives.samples().items():
        link = Cluster.load(collectives.PRESETS[device]).levels[0].bandwidth_bytes_s
        for kind, n, nbytes, seconds in rows:
            # Where a switch adds, each byte of an all-reduce is sent once and received once.
            least = nbytes if kind == "all-reduce" and n > 2 else ring_bytes(kind, n, nbytes)
            assert least / seconds <= link, (device, kind, n, nbytes)
            counted += 1
    assert counted == 2848


def test_large_ones_use_most_of_the_link() -> None:
    # Half of it at least: were bytes of a reduce-scatter those of its result, they would be an eighth.
    for device, rows in collectives.samples().items():
        link = Cluster.load(collectives.PRESETS[device]).levels[0].bandwidth_bytes_s
        for kind in ("all-gather", "reduce-scatter", "all-to-all"):
            n, nbytes, seconds = max((row[1:] for row in rows if row[0] == kind), key=lambda row: (row[0], row[1]))
            assert ring_bytes(kind, n, nbytes) / seconds > link / 2, (device, kind)


@pytest.mark.long
def test_a_kind_is_judged_on_what_its_fit_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"gb200": [row for row in collectives.samples()["gb200"] if row[0] == "all-reduce"]}
    seen: list[int] = []
    fit = collectives.fit_protocols
    monkeypatch.setattr(collectives, "fit_protocols", lambda rows, rate: seen.append(len(rows)) or fit(rows, rate))
    judged = collectives._judge("gb200", "all-reduce", data["gb200"])
    assert judged.met
    # Three fits without a third of the sizes each, then one without each size of group (16 and 18 are one).
    assert sum(264 - count for count in seen[:3]) == sum(264 - count for count in seen[3:]) == 264
    assert len(seen) == 3 + 5
    assert judged.preset.median < 0.05 < 0.4 < judged.textbook.median
    assert judged.record()["met"] is True
    assert "gb200, all-reduce" in str(collectives.table([judged]))


def test_neighbours_say_what_a_table_is_unsure_of() -> None:
    # At a power of bytes there is nothing to be unsure of; one time that is twice as long is off by a half itself, and
    # each of its neighbours by a factor of the square root of two.
    smooth = [("all-reduce", 8, 4**i, 1e-6 * 2**i) for i in range(5)]
    assert collectives._between_neighbours(smooth) == pytest.approx([0, 0, 0])
    odd = [(*row[:3], row[3] * (2 if i == 2 else 1)) for i, row in enumerate(smooth)]
    assert collectives._between_neighbours(odd) == pytest.approx([2**0.5 - 1, 0.5, 2**0.5 - 1])


def test_presets_meet_the_target_on_the_rows_of_their_fit() -> None:
    for device, rows in collectives.samples().items():
        errors = collectives.Errors.of(collectives._errors(Cluster.load(collectives.PRESETS[device]), rows))
        assert errors.median <= 0.07 and errors.p90 <= 0.4, device


def test_timelines_are_true_of_steps_that_ran_on_a_gpu() -> None:
    steps = list(ran.steps())
    assert sorted(Counter(step.preset for step in steps).items()) == [("dgx-h100", 23), ("h200", 12)]
    timelines = [(step, ran.timeline(step)) for step in steps]
    errors = {(step.name, step.preset): abs(found.period_s / step.measured_s - 1) for step, found in timelines}
    found = Errors.of(list(errors.values()))
    assert (found.median, found.p90) <= ran.TARGET and found.p90 <= ran.TARGET[1]
    # Of those too that no constant was chosen by.
    assert Errors.of([error for (name, _), error in errors.items() if name not in ran.SEEN]).median <= ran.TARGET[0]
    for step, found_timeline in timelines:
        priced, measured = step.by_kind(found_timeline)["moves"]
        # Of tiny kernels the profiler says 1.5 us each, where calibration finds 2 from one to the next.
        is_tiny = step.measured_s < 5e-6 * sum(count for _, count in step.kernels.values())
        assert 0.65 <= priced / measured <= (1.45 if is_tiny else 1.2), (step.name, step.preset)


@pytest.mark.parametrize(
    "preset, name, off",
    [
        ("dgx-h100", "llama2-7b", 0.12),
        ("dgx-h100", "lstm-250m", 0.1),
        # Waits for its host: its kernels take half as long.
        pytest.param("dgx-h100", "resnet50-b2", 0.05, marks=pytest.mark.long),
        ("h200", "gpt-350m", 0.1),
        ("h200", "mlp-wide", 0.2),
    ],
)
def test_what_the_search_predicts_is_true_of_a_step_that_ran(preset: str, name: str, off: float) -> None:
    """The quicker ones; `bench.device_model` has all of them."""
    (step,) = (step for step in ran.steps() if (step.preset, step.name) == (preset, name))
    (case,) = (case for case in CASES if case.name == name)
    judged = ran.judged(step, planned(case, part_of(Cluster.load(preset), 1)).plan.predicted)
    assert judged.search_s == pytest.approx(step.measured_s, rel=off)
    assert judged.predicted_peak_bytes == pytest.approx(step.peak_bytes, rel=0.05)
    # The datasheet's roofline is off by more, and too fast.
    assert judged.datasheet_s < min(judged.search_s, judged.timeline_s) < 1.2 * step.measured_s
    assert name in str(ran.table([judged]))
    assert judged.record()["search_s"] == judged.search_s


def test_a_step_that_was_kept_is_read_back(tmp_path: Path) -> None:
    step = ran.Step("one", "h200", "jax 0", 1e-3, 10, {"f": (1e-4, 2.0)}, "ENTRY")
    step.save(tmp_path)
    assert ran.Step.load(tmp_path / "one@h200.json.xz") == step


@pytest.mark.parametrize(("name", "off"), [("llama2-7b", 0.05), ("lstm-250m", 0.1)])
def test_a_calibrated_device_predicts_its_steps(name: str, off: float) -> None:
    """The quicker ones again."""
    (step,) = (step for step in ran.steps() if (step.preset, step.name) == ("dgx-h100", name))
    (case,) = (case for case in CASES if case.name == name)
    device = part_of(Cluster.load(ran.CALIBRATED[step.preset]), 1)
    assert planned(case, device).plan.predicted.step_time_s == pytest.approx(step.measured_s, rel=off)
