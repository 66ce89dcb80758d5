"""Products: the fit of `rhino.machine.fit` to measured ones, judged on shapes that it has not seen.

Owns the data, what is held out, and the baseline: the roofline of the datasheet. `bench.device_model` prints it.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench._common import Errors, Table
from rhino.machine.fit import Measured, fit_products
from rhino.machine.model import Cluster
from rhino.machine.rates import ProductRates
from rhino.program.element_types import dtype_bytes

DATA = Path(__file__).resolve().parent / "data" / "products.csv.gz"
PRESETS = {"sm_90": "dgx-h100", "sm_100_B200": "dgx-b200"}
# Types that must be met: median and 90th percentile of the relative error.
TARGET = {"bf16": (0.05, 0.15), "f8": (0.05, 0.15)}

Sizes = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class JudgedProducts:
    """One device and type. `roofline` and `preset` are of all rows, `impossible` counts those above the chip's peak."""

    device: str
    dtype: str
    rates: ProductRates
    seen: Errors
    held_out: Errors
    preset: Errors
    roofline: Errors
    impossible: int

    @property
    def met(self) -> bool | None:
        """Whether the target is met on what was held out; None where there is none."""
        if self.dtype not in TARGET:
            return None
        median, p90 = TARGET[self.dtype]
        return self.held_out.median <= median and self.held_out.p90 <= p90

    def record(self) -> Mapping[str, object]:
        """As JSON has it."""
        errors = {
            name: asdict(e)
            for name, e in (
                ("seen", self.seen),
                ("held_out", self.held_out),
                ("preset", self.preset),
                ("roofline", self.roofline),
            )
        }
        rates = {name: getattr(self.rates, name) for name in ("start_s", "tile_s", "tile_depth_s", "depth_s")}
        return {
            "device": self.device,
            "type": self.dtype,
            "rates": rates,
            **errors,
            "faster_than_peak": self.impossible,
            "met": self.met,
        }


def samples() -> dict[tuple[str, str], list[Measured]]:
    """What was measured, by device and type."""
    found: dict[tuple[str, str], list[Measured]] = {}
    with gzip.open(DATA, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            b, m, n, k = (int(row[name]) for name in ("batch", "rows", "columns", "depth"))
            seconds = 2 * b * m * n * k / float(row["flops_per_s"])
            found.setdefault((row["device"], row["type"]), []).append((b, m, n, k, seconds))
    return found


def is_held_out(sizes: Sizes) -> bool:
    """Every third shape: all sizes are powers of two, and a shape and its transpose are held out together."""
    b, m, n, k = (size.bit_length() for size in sizes)
    return (b + m + n + 2 * k) % 3 == 0


def judge() -> list[JudgedProducts]:
    """All devices and types of the data."""
    found = []
    for (device, dtype), rows in samples().items():
        cluster = Cluster.load(PRESETS[device])
        chip = cluster.device
        assert chip.kernels is not None
        count = chip.kernels.multiprocessors
        rates = fit_products([row for row in rows if not is_held_out(row[:4])], count)
        given = chip.product_rates("f32" if dtype == "tf32" else dtype)
        assert given is not None
        found.append(
            JudgedProducts(
                device, dtype, rates,
                Errors.of(_errors(_by(rates, count), [row for row in rows if not is_held_out(row[:4])])),
                Errors.of(_errors(_by(rates, count), [row for row in rows if is_held_out(row[:4])])),
                Errors.of(_errors(_by(given, count), rows)),
                Errors.of(_errors(_roofline(cluster, dtype), rows)),
                sum(2 * b * m * n * k / seconds > chip.peak(dtype) for b, m, n, k, seconds in rows),
            )
        )  # fmt: skip
    return found


def _errors(predicted: Callable[[Sizes], float], rows: Sequence[Measured]) -> list[float]:
    """|predicted / measured - 1| of each row."""
    return [abs(predicted((b, m, n, k)) / seconds - 1) for b, m, n, k, seconds in rows]


def _by(rates: ProductRates, multiprocessors: int) -> Callable[[Sizes], float]:
    return lambda sizes: rates.seconds(*sizes, multiprocessors)


def _roofline(cluster: Cluster, dtype: str) -> Callable[[Sizes], float]:
    """The datasheet's: the longer of arithmetic at the peak and of moving everything once."""
    device = cluster.device

    def seconds(sizes: Sizes) -> float:
        b, m, n, k = sizes
        width = dtype_bytes("f32" if dtype == "tf32" else "bf16" if dtype == "bf16" else "f8E4M3FN")
        moved = b * (width * (m + n) * k + (4 if dtype == "tf32" else 2) * m * n)
        return max(2 * b * m * n * k / device.peak(dtype), moved / device.memory_bandwidth_bytes_s)

    return seconds


def table(found: Sequence[JudgedProducts]) -> Table:
    """As a person reads it."""

    return Table(
        "products: |predicted/measured - 1|, median / 90th percentile",
        ("device, type", "fit, seen", "fit, held out", "preset, all", "datasheet, all", "above peak", "target"),
        tuple(
            (
                f"{it.device}, {it.dtype}", str(it.seen), str(it.held_out), str(it.preset), str(it.roofline),
                str(it.impossible), "-" if it.met is None else "met" if it.met else "NOT met",
            )
            for it in found
        ),
    )  # fmt: skip
