"""What bench.cpu_hosts computes from its measurements, and that it runs to a record. No test asserts a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import cpu_hosts
from bench._hosts_worker import SIZES
from bench._namespaces import available

ROOT = Path(__file__).resolve().parents[3]
MISSING = available()


def row(predicted: float, measured: float, same_as: str) -> dict[str, Any]:
    return {"predicted_s": predicted, "step_time_s": {"median": measured}, "same_as": same_as}


def test_predictions_are_judged_over_programs_that_differ() -> None:
    rows = {"O1": row(1.1, 1.0, "O1"), "data": row(3.0, 2.0, "data"), "zero1": row(9.0, 2.0, "data")}
    found = cpu_hosts.predicted_well(rows)
    assert found["median_error"] == pytest.approx(0.3)
    assert found["worst_error"] == pytest.approx(0.5)
    assert found["found_predicted_over_measured"] == pytest.approx(1.1)


def test_totals_are_over_all_cases() -> None:
    plans = {"O1": row(1.0, 1.0, "O1"), "data": row(2.0, 1.0, "data"), "zero3": row(3.0, 4.0, "zero3")}
    cases = [{"plans": plans, "summary": {"found_over_best": ratio}} for ratio in (1.0, 0.5)]
    found = cpu_hosts.totals(cases)
    assert (found["plans"], found["found_over_best"], found["median_error"]) == (6, 1.0, 0.25)
    assert cpu_hosts.totals([]) == {
        "plans": 0, "found_over_best": None, "median_error": None, "p90_error": None, "spearman": None
    }  # fmt: skip


def test_every_case_has_a_size() -> None:
    assert {case.model for case in cpu_hosts.CASES} == set(SIZES)
    assert len({case.name for case in cpu_hosts.CASES}) == len(SIZES) * len(cpu_hosts.MBITS)


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
@pytest.mark.long
def test_it_runs() -> None:
    argv = [sys.executable, "-m", "bench.cpu_hosts", "--quick", "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    (case,) = results["cases"]
    assert {"O1", "data", "zero3"} <= set(case["plans"])
    assert "inter-host" in results["clusters"]["200"]
