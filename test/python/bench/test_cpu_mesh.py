"""What bench.cpu_mesh computes from its measurements, and that it runs to a record. No test asserts a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench._ranks import ranks, spearman
from bench.cpu_mesh import summary

ROOT = Path(__file__).resolve().parents[3]


def test_equal_values_share_a_rank() -> None:
    assert ranks([5.0, 1.0, 5.0, 9.0]) == [1.5, 0.0, 1.5, 3.0]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 400], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6 * sum(d^2) / (n (n^2 - 1))
        ([1, 1], [1, 2], None),
        ([], [], None),
    ],
)
def test_spearman(first: list[float], second: list[float], expected: float | None) -> None:
    assert spearman(first, second) == (None if expected is None else pytest.approx(expected))


def row(predicted: float, measured: float, same_as: str) -> dict[str, Any]:
    return {"predicted_s": predicted, "step_time_s": {"median": measured}, "same_as": same_as}


def test_found_plan_is_compared_with_the_fastest_expert_and_twins_count_once() -> None:
    plans = {"O1": row(1, 2, "O1"), "data": row(2, 4, "data"), "zero1": row(3, 4, "data"), "zero3": row(4, 5, "zero3")}
    facts = summary({"plans": plans})
    assert (facts["best_expert"], facts["found_over_best"]) == ("data", 0.5)
    assert facts["spearman"] == pytest.approx(1.0)


def test_a_model_whose_found_plan_failed_has_no_ratio() -> None:
    assert summary({"plans": {"data": row(2, 4, "data")}})["found_over_best"] is None


@pytest.mark.long
def test_a_quick_run_trains_with_every_plan_to_the_same_loss() -> None:
    argv = [sys.executable, "-m", "bench.cpu_mesh", "--quick", "--cluster", "local", "--rounds", "1", "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]["models"]
    assert result["failures"] == {}
    assert {"O1", "data", "zero3"} <= set(result["plans"])
    found = result["plans"]["O1"]["losses"]
    assert all(plan["losses"] == pytest.approx(found, rel=1e-3) for plan in result["plans"].values())
