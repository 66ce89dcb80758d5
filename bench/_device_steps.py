"""Steps that ran on a GPU: what they took against the search's prediction, and against the timeline of XLA's program.

Owns the data, which steps constants were chosen by, and the baseline: the roofline of the datasheet. No device is
needed: `bench.gpu --keep` makes such files where there is one, and `bench.device_model` prints what is found.
"""

from __future__ import annotations

import json
import lzma
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench._common import Errors, Table
from bench._gpu_cases import CASES, Case, planned
from rhino.compile.hlo_times import FROM_HOST, TO_HOST
from rhino.compile.timeline import Timeline, read_timeline
from rhino.machine import Cluster
from rhino.machine.model import Efficiency
from rhino.pipeline.search.placement import part_of
from rhino.plan.data import Predicted

DATA = Path(__file__).resolve().parent / "data" / "gpu_steps"
# What a calibration of one GPU found, by the preset of its like.
CALIBRATED = {"dgx-h100": DATA.parent / "h100_calibrated.yaml"}
# Constants of `device.kernels.elements` were chosen by these and by single operations; the others were not looked at.
SEEN = ("bert-large", "gpt-1.3b", "vit-l16")
KINDS = ("product", "kernel", "moves")
KIND_NAMES = ("products", "attention", "others")
# Median and 90th percentile of what the timeline says of a step.
TARGET = (0.10, 0.20)
_METADATA = re.compile(r", metadata=\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Step:
    """A step as it ran.

    Attributes:
      preset: the cluster whose device it ran on.
      measured_s: of one step, the least of some blocks of steps.
      peak_bytes: the most that XLA's allocator gave.
      kernels: by instruction, seconds in a step and how many kernels.
      hlo: XLA's program without CUDA graphs, whose kernels these are.
      apart_s: of a step of that program; None where `measured_s` is of it, too, and not of one with graphs.
    """

    name: str
    preset: str
    software: str
    measured_s: float
    peak_bytes: int
    kernels: Mapping[str, tuple[float, float]]
    hlo: str
    apart_s: float | None = None

    def save(self, folder: Path) -> None:
        """Write it, without what the program says of its source."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(replace(self, hlo=_METADATA.sub("", self.hlo))))
        (folder / f"{self.name}@{self.preset}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))

    @classmethod
    def load(cls, file: Path) -> Step:
        """What `save` wrote."""
        found: dict[str, Any] = json.loads(lzma.decompress(file.read_bytes()))
        return cls(**{**found, "kernels": {name: (s, n) for name, (s, n) in found["kernels"].items()}})

    def by_kind(self, timeline: Timeline) -> dict[str, tuple[float, float]]:
        """By kind of kernel, seconds of a step as priced and as measured; copies from and to the host are none.

        What XLA has run beside others has another name where it ran: all of that moves bytes.
        """
        kinds: dict[str, str] = {}
        priced = dict.fromkeys(KINDS, 0.0)
        for event in timeline.events:
            if event.stream == "compute" and event.kind in priced:
                kinds[event.name] = event.kind
                priced[event.kind] += event.seconds * event.executions
        measured: dict[str, float] = defaultdict(float)
        copies = {event.name for event in timeline.events if event.stream in (FROM_HOST, TO_HOST)}
        for name, (seconds, _) in self.kernels.items():
            if name in copies:
                continue
            measured[kinds.get(name, "moves")] += seconds
        return {kind: (priced[kind], measured[kind]) for kind in KINDS if priced[kind] or measured[kind]}


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """One step: seconds as measured, by the search, the timeline and the datasheet; by kind of kernel, by the timeline.

    `peak_bytes` are the most that XLA's allocator gave, workspaces while kernels were chosen included, and
    `predicted_peak_bytes` what the search says. `calibrated_s` is the search's with a calibrated device of the kind.
    """

    name: str
    preset: str
    seen: bool
    measured_s: float
    search_s: float
    timeline_s: float
    datasheet_s: float
    by_kind_s: Mapping[str, tuple[float, float]]
    peak_bytes: int
    predicted_peak_bytes: int
    calibrated_s: float | None = None

    def record(self) -> Mapping[str, object]:
        """As JSON has it."""
        return asdict(self)


def steps() -> Iterator[Step]:
    """What was kept, by name."""
    for file in sorted(DATA.glob("*.json.xz")):
        yield Step.load(file)


def timeline(step: Step) -> Timeline:
    """By its device's preset, of what `measured_s` is of."""
    return read_timeline(step.hlo, Cluster.load(step.preset), graphs=step.apart_s is not None)


def judged(step: Step, predicted: Predicted) -> JudgedStep:
    """A step by its device's preset, and what its plan predicts."""
    cluster = Cluster.load(step.preset)
    plain = replace(cluster, device=replace(cluster.device, kernels=None), efficiency=Efficiency())
    found = timeline(step)
    return JudgedStep(
        step.name, step.preset, step.name in SEEN, step.measured_s, predicted.period_s, found.period_s,
        read_timeline(step.hlo, plain).total_s, step.by_kind(found), step.peak_bytes, predicted.peak_bytes,
    )  # fmt: skip


def judge() -> list[JudgedStep]:
    """All that were kept, planned anew."""
    cases, found = {case.name: case for case in CASES}, []
    for step in steps():

        def predicted(device: Cluster, case: Case = cases[step.name]) -> Predicted:
            return planned(case, part_of(device, 1)).plan.predicted

        own = CALIBRATED.get(step.preset)
        calibrated_s = predicted(Cluster.load(own)).period_s if own is not None else None
        found.append(replace(judged(step, predicted(Cluster.load(step.preset))), calibrated_s=calibrated_s))
    return found


def ratios(found: Sequence[JudgedStep], key: str) -> list[float]:
    """Predicted over measured seconds of the steps that have such a prediction."""
    return [seconds / it.measured_s for it in found if (seconds := getattr(it, key)) is not None]


def table(found: Sequence[JudgedStep]) -> Table:
    """As a person reads it."""

    def ratio(it: JudgedStep, kind: str) -> str:
        priced, measured = it.by_kind_s.get(kind, (0.0, 0.0))
        return f"{priced / measured:.2f}" if measured else ""

    keys = ("search_s", "calibrated_s", "timeline_s", "datasheet_s")
    rows = [
        (
            f"{it.name}, {it.preset}{', seen' if it.seen else ''}", f"{1e3 * it.measured_s:.2f}",
            *("".join(f"{each:.2f}" for each in ratios([it], key)) for key in keys),
            *(ratio(it, kind) for kind in KINDS), f"{it.predicted_peak_bytes / it.peak_bytes:.2f}",
        )
        for it in found
    ]  # fmt: skip
    of_all = [ratios(found, key) for key in keys]
    off = (str(Errors.of([abs(each - 1) for each in of]) if of else "") for of in of_all)
    rows.append(("error, median / 90th percentile", "", *off, "", "", "", ""))
    rows.append(("median", "", *(f"{statistics.median(of):.2f}" if of else "" for of in of_all), "", "", "", ""))
    return Table(
        "steps on a GPU: predicted over measured",
        ("step", "measured ms", "search", "calibrated", "timeline", "datasheet", *KIND_NAMES, "peak"),
        tuple(rows),
    )
