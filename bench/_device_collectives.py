"""Collectives: the fit of `rhino.machine.protocol_fit` to measured ones, judged on sizes and groups it has not seen.

Owns the data, what is held out, and the baseline: the textbook's rings at the datasheet's rate. `bench.device_model`
prints it.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from statistics import median

from bench._common import Errors, Table
from rhino.machine.collectives import RingModel
from rhino.machine.model import Cluster
from rhino.machine.protocol_fit import Sample, fit_protocols
from rhino.machine.protocols import Protocol
from rhino.program.operations import COLLECTIVES

DATA = Path(__file__).resolve().parent / "data" / "collectives.csv.gz"
PRESETS = {"h100": "dgx-h100", "b200": "dgx-b200", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}
# Median and 90th percentile of the relative error that must be met on what was held out.
TARGET = (0.10, 0.25)
_FOLDS = 3


@dataclass(frozen=True, slots=True)
class JudgedCollective:
    """One device and kind.

    Attributes:
      lines: how many lines the preset has.
      sizes: errors of every size by fits to two thirds of the sizes, those without it.
      groups: errors of every size of group by fits to those that are not about as large (16 and 18 are); None where
        there are no groups.
      preset, textbook: errors of the preset, and of rings at its nominal rate and latency, on all rows.
      neighbours: errors of the geometric mean of the two sizes beside each, of one group: what the table itself is
        unsure of, which no smooth model is expected to be below.
    """

    device: str
    kind: str
    lines: int
    sizes: Errors
    groups: Errors | None
    preset: Errors
    textbook: Errors
    neighbours: Errors

    @property
    def met(self) -> bool:
        """Whether the target is met on held-out sizes."""
        return self.sizes.median <= TARGET[0] and self.sizes.p90 <= TARGET[1]

    def record(self) -> Mapping[str, object]:
        """As JSON has it."""
        errors = {
            "sizes": self.sizes, "groups": self.groups, "preset": self.preset, "textbook": self.textbook,
            "neighbours": self.neighbours,
        }  # fmt: skip
        return {
            "device": self.device,
            "kind": self.kind,
            "lines": self.lines,
            **{name: None if e is None else asdict(e) for name, e in errors.items()},
            "met": self.met,
        }


def samples() -> dict[str, list[Sample]]:
    """What was measured, by device: kind, devices of a group, bytes of the full tensor, seconds."""
    found: dict[str, list[Sample]] = {}
    with gzip.open(DATA, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kind, n, result = row["kind"], int(row["devices"]), int(row["result_bytes"])
            counted = result * n if kind == "reduce-scatter" else result
            full = result * n if kind in ("reduce-scatter", "all-to-all") else result
            found.setdefault(row["device"], []).append((kind, n, full, counted / float(row["bytes_per_s"])))
    return found


def is_all_reduce_by_switch(sample: Sample) -> bool:
    """Whether it is an all-reduce over a whole host of H100s, in which NVSwitches add (NVLink SHARP)."""
    return sample[0] == "all-reduce" and sample[1] == 8


def judge() -> list[JudgedCollective]:
    """All devices and kinds of the data."""
    return [_judge(device, kind, rows) for device, every in samples().items() for kind, rows in _by_kind(every)]


def _by_kind(rows: Sequence[Sample]) -> list[tuple[str, list[Sample]]]:
    return [(kind, [row for row in rows if row[0] == kind]) for kind in COLLECTIVES]


def _judge(device: str, kind: str, rows: list[Sample]) -> JudgedCollective:
    cluster = Cluster.load(PRESETS[device])
    rate = cluster.levels[0].bandwidth_bytes_s

    def unseen(fold: Callable[[Sample], object]) -> list[float]:
        """Errors of each fold by the fit to all others."""
        errors: list[float] = []
        for held in dict.fromkeys(map(fold, rows)):
            ways = fit_protocols([row for row in rows if fold(row) != held], rate)
            errors += _errors(with_protocols(cluster, ways), [row for row in rows if fold(row) == held])
        return errors

    # The sizes of one group, in order; of several patterns of a permute, each size once.
    place = {
        (n, v): index % _FOLDS
        for n in sorted({row[1] for row in rows})
        for index, v in enumerate(sorted({row[2] for row in rows if row[1] == n}))
    }
    several = kind != "collective-permute"
    return JudgedCollective(
        device,
        kind,
        len(cluster.levels[0].protocols[kind]),
        Errors.of(unseen(lambda row: place[row[1], row[2]])),
        Errors.of(unseen(lambda row: row[1].bit_length())) if several else None,
        Errors.of(_errors(cluster, rows)),
        Errors.of(_errors(with_protocols(cluster, {}), rows)),
        Errors.of(_between_neighbours(rows)),
    )


def _between_neighbours(rows: Sequence[Sample]) -> list[float]:
    """Of every size but the ends, |seconds at a power of bytes through its two neighbours / measured - 1|."""
    found = []
    for n in sorted({row[1] for row in rows}):
        # Of several patterns of a permute, the median.
        by_size: dict[int, list[float]] = {}
        for _, of, nbytes, seconds in rows:
            if of == n:
                by_size.setdefault(nbytes, []).append(seconds)
        points = [(log(nbytes), log(median(times))) for nbytes, times in sorted(by_size.items())]
        for (x0, y0), (x, y), (x1, y1) in zip(points, points[1:], points[2:], strict=False):
            found.append(abs(exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y) - 1))
    return found


def with_protocols(cluster: Cluster, ways: Mapping[str, tuple[Protocol, ...]]) -> Cluster:
    """The cluster with other protocols on its first level."""
    return replace(cluster, levels=(replace(cluster.levels[0], protocols=ways), *cluster.levels[1:]))


def _errors(cluster: Cluster, rows: Sequence[Sample]) -> list[float]:
    """|predicted / measured - 1| of each row, by the model that plans are priced with."""
    models: dict[int, RingModel] = {}
    found = []
    for kind, n, nbytes, seconds in rows:
        if n not in models:
            models[n] = RingModel(cluster.with_hosts(-(-n // cluster.devices_per_host)), (n,))
        found.append(abs(models[n].time(kind, (0,), nbytes) / seconds - 1))
    return found


def table(found: Sequence[JudgedCollective]) -> Table:
    """As a person reads it."""

    def text(errors: Errors | None) -> str:
        return "-" if errors is None else str(errors)

    columns = (
        "device, kind",
        "rows",
        "lines",
        "held-out sizes",
        "held-out groups",
        "preset, all",
        "textbook, all",
        "neighbours",
        "target",
    )
    return Table(
        "collectives: |predicted/measured - 1|, median / 90th percentile",
        columns,
        tuple(
            (
                f"{it.device}, {it.kind}", str(it.preset.count), str(it.lines), text(it.sizes), text(it.groups),
                text(it.preset), text(it.textbook), text(it.neighbours), "met" if it.met else "NOT met",
            )
            for it in found
        ),
    )  # fmt: skip
