"""What products take: the closed form, its fit, and the presets' parameters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.machine import Cluster
from rhino.machine.catalog import preset_names
from rhino.machine.fit import fit_products, least_relative
from rhino.machine.rates import ProductRates

SIDES = (256, 512, 1024, 2048, 4096)
SHAPES = [(b, m, n, k) for b in (1, 4) for m in SIDES for n in SIDES for k in SIDES]


def test_a_product_by_hand() -> None:
    rates = ProductRates(start_s=5e-6, tile_s=2e-7, tile_depth_s=1e-9, depth_s=5e-10)
    # 4 tiles on 100 multiprocessors take what 100 do.
    assert rates.seconds(1, 128, 128, 512, 100) == pytest.approx(5e-6 + 2e-7 + 512e-9 + 512 * 5e-10)
    # 2 x 2 x 3 tiles of which the last are cut, three to each of four.
    assert rates.seconds(2, 128, 130, 512, 4) == pytest.approx(5e-6 + 3 * (2e-7 + 512e-9) + 512 * 5e-10)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.floats(1e-6, 1e-5), st.floats(1e-8, 1e-6), st.floats(1e-10, 1e-8), st.floats(1e-11, 1e-9)),
    st.integers(1, 200),
)
def test_the_fit_recovers_the_rates_that_made_the_samples(values: tuple[float, ...], multiprocessors: int) -> None:
    rates = ProductRates(*values)
    measured = [(*sizes, rates.seconds(*sizes, multiprocessors)) for sizes in SHAPES]
    found = fit_products(measured, multiprocessors)
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
