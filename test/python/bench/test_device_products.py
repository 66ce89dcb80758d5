"""The device model's bench: the fit keeps its promise on shapes that it has not seen."""

from __future__ import annotations

import pytest

from bench._device_products import JudgedProducts, is_held_out, judge, samples


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, str], JudgedProducts]:
    return {(it.device, it.dtype): it for it in judge()}


def test_a_third_is_held_out_with_transposes() -> None:
    for rows in samples().values():
        held = [sizes for *sizes, _ in rows if is_held_out(tuple(sizes))]  # type: ignore[arg-type]
        assert 0.3 < len(held) / len(rows) < 0.4
        assert all([b, n, m, k] in held for b, m, n, k in held)


@pytest.mark.parametrize(("device", "dtype"), [("sm_90", "bf16"), ("sm_100_B200", "bf16"), ("sm_100_B200", "f8")])
def test_products_are_met(found: dict[tuple[str, str], JudgedProducts], device: str, dtype: str) -> None:
    it = found[device, dtype]
    assert it.met
    # The preset has the fit, of all shapes.
    assert it.preset.median < 0.05 and it.preset.p90 < 0.15
    assert it.roofline.median > 10 * it.held_out.median


def test_products_faster_than_the_chip_are_told(found: dict[tuple[str, str], JudgedProducts]) -> None:
    assert {key: it.impossible for key, it in found.items() if it.impossible} == {("sm_90", "f8"): 29}
    assert found["sm_90", "f8"].met is False
