"""What the benchmarks compute from their measurements, and that each runs to a record. No test asserts a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import cost_fidelity, train_cpu
from bench._common import BenchError
from bench._inputs import GPT, count_lines, module

ROOT = Path(__file__).resolve().parents[3]


def test_bytes_are_added_up_by_kind() -> None:
    entries = [
        {"kind": "all-reduce", "bytes": 3},
        {"kind": "all-gather", "bytes": 5},
        {"kind": "all-reduce", "bytes": 4},
    ]
    assert cost_fidelity.by_kind(entries) == {"all-reduce": 7, "all-gather": 5}


def test_ratios_leave_out_what_carries_no_weight() -> None:
    predicted = {"all-reduce": 90, "all-gather": 1000, "all-to-all": 1}
    measured = {"all-reduce": 100, "collective-permute": 50}
    assert cost_fidelity.ratios(predicted, measured) == {
        "all-reduce": 0.9,
        "all-gather": None,  # XLA has none: there is no ratio, and it must not look like a good one
        "collective-permute": 0.0,
    }


def test_naive_communication_is_a_ring_all_reduce_of_the_parameters() -> None:
    arguments = [{"role": "param", "shape": [8, 4]}, {"role": "param", "shape": []}, {"role": "batch", "shape": [99]}]
    assert cost_fidelity.naive_comm_bytes(arguments, devices=4) == round(2 * 33 * 4 * 3 / 4)


def test_equal_losses_pass_and_the_largest_difference_is_returned() -> None:
    results: dict[str, Any] = {"one device": {"losses": [2.0, 1.0]}, "rhino": {"losses": [2.0, 1.00005]}}
    assert train_cpu.check_losses(results) == pytest.approx(5e-5)


@pytest.mark.parametrize("wrong", [1.001, float("nan")])
def test_other_losses_are_an_error(wrong: float) -> None:
    with pytest.raises(BenchError, match="rhino: loss"):
        train_cpu.check_losses({"one device": {"losses": [1.0]}, "rhino": {"losses": [wrong]}})


def test_inputs_have_names_of_their_own() -> None:
    models = [GPT("10m", 8), GPT("10m", 16), GPT("10m", 8, layers=2), GPT("10m", 8, seq=2), GPT("10m", 8, remat=False)]
    assert len({model.name for model in models}) == len(models)


def test_input_is_exported_once_with_the_asked_number_of_layers() -> None:
    model = GPT("tiny", 4, layers=3, seq=16)
    path = module(model)
    first = path.stat().st_mtime_ns
    assert module(model).stat().st_mtime_ns == first
    text = path.read_text()
    assert "tensor<4x17xi32>" in text
    assert "['h_2']" in text
    assert "['h_3']" not in text
    assert count_lines(path) == text.count("\n")


def bench(name: str, *options: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", f"bench.{name}", "--quick", "--json", "-", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert record["bench"] == name
    results: dict[str, Any] = record["results"]
    return results


@pytest.mark.long
def test_scanned_compares_both_programs_of_a_model() -> None:
    results = bench("scanned")
    (case,) = results["cases"]
    assert case["scanned"]["lines"] < case["unrolled"]["lines"]
    ratio = case["scanned"]["predicted"]["step_time_s"] / case["unrolled"]["predicted"]["step_time_s"]
    assert results["ratio"] == pytest.approx(ratio)


@pytest.mark.long
def test_startup_runs() -> None:
    commands = bench("startup", "--rounds", "1")["commands"]
    names = [entry["name"] for entry in commands]
    assert "rhino-opt --help" in names
    assert "python -c 'import jax'" in names
    assert all(entry["wall_s"]["rounds"] == 1 for entry in commands)


@pytest.mark.long
def test_search_time_runs() -> None:
    two, four = bench("search_time")["cases"]
    assert two["lines"] < four["lines"]
    assert two["mesh"]
    assert {"parse", "rhino-inline", "import", "solve", "write", "print"} <= set(two["phases_s"])


@pytest.mark.long
def test_cost_fidelity_runs() -> None:
    cases = bench("cost_fidelity")["cases"]
    assert [case["target"] for case in cases] == ["cpu", "h100"]
    assert all(case["xla_peak_bytes"] > 0 and case["predicted_peak_bytes"] > 0 for case in cases)


@pytest.mark.long
def test_train_cpu_runs() -> None:
    results = bench("train_cpu", "--preset", "tiny", "--rounds", "2")
    assert set(results["ways"]) == {"rhino", "data parallel by hand", "one device"}
    assert results["ways"]["one device"]["comm_bytes"] == 0
    assert results["ways"]["data parallel by hand"]["comm_bytes"] > 0


def test_unknown_case_is_an_error_that_lists_the_cases() -> None:
    argv = [sys.executable, "-m", "bench.search_time", "--only", "no-such-model"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no case contains no-such-model; there are gpt-1.3b")
    assert "Traceback" not in done.stderr
