"""The timeline's bench: ranks, and what it says of plans as plan_quality keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from bench._ranks import spearman
from bench.timeline import judged, summary


def test_ranks_go_by_order_and_near_ones_are_equal() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 21.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # The first two differ by less than a thousandth, both times.
    assert spearman([1.0, 1.0005, 3.0], [2.0002, 2.0, 5.0], near=1.001) == pytest.approx(1.0)
    assert spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


def plan(name: str, step_s: float, total_s: float | None) -> dict[str, Any]:
    xla = (
        {"timeline": {"total_s": total_s, "compute_s": {"moves": 1.0}, "exposed_s": {}}} if total_s else {"error": "x"}
    )
    return {"plan": name, "predicted": {"step_time_s": step_s, "compute_s": 1.0}, "xla": xla}


def test_plans_that_were_not_compiled_are_left_out() -> None:
    row = {
        "case": "m@c",
        "error": "",
        "plans": [plan("O1", 1.1, 1.0), plan("data", 1.8, 2.0), plan("zero3", 9.0, None)],
    }
    found = judged(row)
    assert [p["plan"] for p in found["plans"]] == ["O1", "data"]
    assert found["against_experts"] == {"O1": 0.5}
    total = summary([found])
    assert (total["plans"], total["cases"]) == (2, 1)
    assert total["median_error"] == pytest.approx(0.1)
    assert total["worst_O1_against_experts"] == 0.5
    assert total["median_spearman"] is None and total["worst_O2_against_experts"] is None
