"""What products take: the closed form, its fit, and the presets' parameters."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.machine import Cluster
from rhino.machine.catalog import preset_names
from rhino.machine.fit import fit_attention, fit_products, least_relative
from rhino.machine.rates import AttentionRates, ElementRates, ProductRates
from rhino.program.products import feature_slowness, slowness
from rhino.program.work import Work

SIDES = (256, 512, 1024, 2048, 4096)
SHAPES = [(b, m, n, k) for b in (1, 4) for m in SIDES for n in SIDES for k in SIDES]


def test_a_product_by_hand() -> None:
    rates = ProductRates(start_s=5e-6, tile_s=2e-7, tile_depth_s=1e-9, depth_s=5e-10)
    # 4 tiles on 100 multiprocessors take what 100 do.
    assert rates.seconds(1, 128, 128, 512, 100) == pytest.approx(5e-6 + 2e-7 + 512e-9 + 512 * 5e-10)
    # 2 x 2 x 3 tiles of which the last are cut, three to each of four.
    assert rates.seconds(2, 128, 130, 512, 4) == pytest.approx(5e-6 + 3 * (2e-7 + 512e-9) + 512 * 5e-10)


def test_what_is_smaller_than_a_tile_takes_as_long_as_one() -> None:
    wide = ProductRates(start_s=0.0, tile_s=0.0, tile_depth_s=16e-9, depth_s=0.0)
    small = replace(wide, tile_depth_s=1e-9, tile=16)
    # As fast in large products; sixteen times so in 256 of 7 by 7.
    assert small.seconds(1, 512, 512, 64, 1) == pytest.approx(wide.seconds(1, 512, 512, 64, 1))
    assert small.seconds(256, 7, 7, 32, 1) == pytest.approx(wide.seconds(256, 7, 7, 32, 1) / 16)
    assert small.scaled(2.0) == replace(small, tile_depth_s=5e-10)


def test_long_sums_of_few_tiles_are_cut() -> None:
    rates = ProductRates(start_s=5e-6, tile_s=2e-7, tile_depth_s=1e-9, depth_s=5e-10)
    # One tile of 2^20 on 100 multiprocessors: 100 parts, and a kernel that adds them up.
    part = 2**20 / 100
    assert rates.seconds(1, 64, 64, 2**20, 100) == pytest.approx(10e-6 + 2e-7 + part * 1.5e-9)
    # No part is shorter than 4,096, and where there are tiles enough there are no parts.
    assert rates.seconds(1, 64, 64, 8192, 100) == pytest.approx(10e-6 + 2e-7 + 4096 * 1.5e-9)
    assert rates.seconds(1, 64, 64, 8191, 100) == pytest.approx(5e-6 + 2e-7 + 8191 * 1.5e-9)
    assert rates.seconds(100, 64, 64, 2**20, 100) == pytest.approx(5e-6 + 2e-7 + 2**20 * 1.5e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.floats(1e-6, 1e-5), st.floats(1e-8, 1e-6), st.floats(1e-10, 1e-8), st.floats(1e-11, 1e-9)),
    st.integers(1, 200),
    st.sampled_from((16, 64)),
)
def test_the_fit_recovers_the_rates_that_made_the_samples(
    values: tuple[float, ...], multiprocessors: int, tile: int
) -> None:
    rates = replace(ProductRates(*values), tile=tile)
    measured = [(*sizes, rates.seconds(*sizes, multiprocessors)) for sizes in SHAPES]
    found = fit_products(measured, multiprocessors, tile)
    assert found.tile == tile
    for *sizes, seconds in measured:
        assert found.seconds(*sizes, multiprocessors) == pytest.approx(seconds, rel=1e-4)


def test_one_kernel_that_is_slow_for_its_own_reasons_pulls_no_other() -> None:
    rates = ProductRates(5e-6, 2e-7, 1e-9, 5e-10)
    measured = [(*sizes, rates.seconds(*sizes, 100)) for sizes in SHAPES]
    measured[100] = (*measured[100][:4], 10 * measured[100][4])
    found = fit_products(measured, 100)
    errors = [abs(found.seconds(*sizes, 100) / seconds - 1) for *sizes, seconds in measured]
    assert sorted(errors)[-2] < 0.01


@given(st.lists(st.floats(1e-6, 1.0), min_size=8, max_size=8))
def test_no_parameter_is_negative(times: list[float]) -> None:
    import numpy as np

    terms = np.array([[1.0, k, k * k] for k in range(1, 9)])
    assert (least_relative(terms, np.array(times)) >= 0).all()


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="3 products cannot tell 4 parameters"):
        fit_products([(1, 64, 64, 64, 1e-6)] * 3, 100)


# A CPU's products are measured as a rate.
@pytest.mark.parametrize("name", [name for name in preset_names() if name != "cpu"])
def test_no_preset_is_faster_than_its_chip(name: str) -> None:
    device = Cluster.load(name).device
    assert device.kernels is not None
    for dtype in ("f32", "bf16", "f16", "f8E4M3FN", "i8"):
        rates = device.product_rates(dtype)
        assert rates is not None
        large_s = rates.seconds(8, 16384, 16384, 16384, device.kernels.multiprocessors)
        share = 8 * 2 * 16384**3 / large_s / device.matmul_peak(dtype)
        assert 0.6 < share < 1, dtype


def test_attention_by_hand() -> None:
    rates = AttentionRates(flop_s=1e-15, score_s=3e-13, row_s=1e-10)
    assert rates.seconds(512e9, 1e9, 1e6) == pytest.approx(512e-6 + 300e-6 + 100e-6)
    # Eight bits double what products do, and nothing else.
    assert rates.seconds(512e9, 1e9, 1e6, speed=2) == pytest.approx(256e-6 + 300e-6 + 100e-6)


def measured_attention() -> dict[tuple[str, str], list[tuple[float, float, float, float]]]:
    """Samples of bench/data/attention.csv by device and direction, of the kernel that its preset is of."""
    found: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
    table = Path(__file__).parents[3] / "bench" / "data" / "attention.csv"
    for row in csv.DictReader(table.read_text(encoding="utf-8").splitlines()):
        if row["kernel"] != ("flash-attention-2" if row["device"] == "a100" else "cudnn"):
            continue
        positions, window = int(row["positions"]), int(row["window"])
        keys = window - window**2 / (2 * positions) if window else positions / (1 + int(row["causal"]))
        rows = int(row["batch"]) * int(row["heads"]) * positions
        flops = (2 if row["direction"] == "forward" else 5) * rows * keys * (int(row["head"]) + int(row["value_head"]))
        seconds = flops / (float(row["tflops"]) * 1e12)
        found.setdefault((row["device"], row["direction"]), []).append((flops, rows * keys, rows, seconds))
    return found


@pytest.mark.parametrize(
    "preset, device",
    [
        ("dgx-h100", "h100"),
        ("dgx-b200", "b200"),
        ("gb200-nvl72", "gb200"),
        ("gb300-nvl72", "gb300"),
        ("dgx-a100", "a100"),
    ],
)
def test_attention_of_presets_is_fitted_to_published_rates(preset: str, device: str) -> None:
    """The file's rates are the fit's, and are off by less than a tenth for half of the shapes."""
    kernels = Cluster.load(preset).device.kernels
    assert kernels is not None
    for direction, rates in kernels.attention.items():
        samples = measured_attention().get((device, direction))
        if samples is None:
            continue  # an A100's backward is derived
        fitted = fit_attention(samples)
        errors = sorted(abs(rates.seconds(*sizes) / seconds - 1) for *sizes, seconds in samples)
        assert errors[len(errors) // 2] < 0.1
        for *sizes, _ in samples:
            assert rates.seconds(*sizes) == pytest.approx(fitted.seconds(*sizes), rel=0.02)


def test_too_few_attentions_are_refused() -> None:
    with pytest.raises(ValueError, match="2 attentions cannot tell 3 parameters"):
        fit_attention([(1.0, 1.0, 1.0, 1e-6)] * 2)


def test_the_longer_of_moving_and_computing_counts() -> None:
    rates = ElementRates(operation_s=1e-12, row_exponential_s=2e-12, addition_s=3e-12, clash_s=1e-6)
    assert rates.seconds(Work(8.0, operations=1e6), 5e-6) == pytest.approx(5e-6)
    assert rates.seconds(Work(8.0, operations=1e7), 5e-6) == pytest.approx(1e-5)
    # Exponentials of rows come on top, and additions wait for each other.
    assert rates.seconds(Work(8.0, row_exponentials=1e6), 5e-6) == pytest.approx(7e-6)
    assert rates.seconds(Work(8.0, additions=1e6, clashes=10.0), 5e-6) == pytest.approx(13e-6)


def test_rows_that_begin_anywhere_are_moved_element_by_element() -> None:
    # 16 bytes are read at once.
    assert slowness((64, 200), 2) == slowness((64, 196), 4) == slowness((64, 1), 2) == slowness((197,), 2) == 1.0
    assert slowness((64, 197), 2) == 2.75
    assert slowness((64, 197), 4) == 1.375
    assert slowness((64, 197), 8) == 1.0


def test_colours_are_few_features() -> None:
    assert feature_slowness(3, 2) == 10.0
    assert feature_slowness(3, 4) == feature_slowness(8, 2) == 1.0
