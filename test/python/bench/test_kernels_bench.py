"""What the benchmark of kernels reads from modules and compares, and that it runs to a record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import kernels
from bench._kernel_cases import CASES, PINS, dims_of

ROOT = Path(__file__).resolve().parents[3]


def test_the_first_operands_of_calls_are_counted() -> None:
    text = """
      %1:2 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {backend_config = "{}", operand_layouts =
      """.strip().replace("\n", " ")
    text += (
        " [dense<[3, 2, 1, 0]> : tensor<4xindex>]} : (tensor<2x8x4x16xbf16>, tensor<2x8x4x16xbf16>) -> tensor<9xf32>"
    )
    other = "%2 = stablehlo.custom_call @other(%x) : (tensor<64xf32>) -> tensor<64xf32>"
    assert kernels.queries(f"{text}\n{other}\n{text.replace('2x8x4', '4x8x4')}") == [1024, 2048]


def test_kinds_that_only_one_plan_has_are_named_unless_they_carry_nothing() -> None:
    ours = {"all-gather": 1000, "all-to-all": 500, "collective-permute": 1, "all-reduce": 20}
    assert kernels.kinds_lacking(ours, {"all-gather": 1, "all-reduce": 0}) == ["all-reduce", "all-to-all"]
    assert kernels.kinds_lacking({}, {}) == []


def test_a_pipelines_prediction_is_compared_with_the_stage_it_is_of() -> None:
    stages = [{"all-reduce": 50}, {"all-reduce": 90, "all-gather": 15}, {"all-reduce": 400}]
    assert kernels.nearest({"all-reduce": 100}, stages) == stages[1]
    xla = {"collectives": [], "groups": [{"collectives": [{"kind": "all-reduce", "bytes": 3}]}, {"collectives": []}]}
    assert kernels.groups(xla) == [{"all-reduce": 3}, {}]


def test_the_baseline_that_does_not_fit_has_no_kinds() -> None:
    plan = {
        "predicted": {"peak_bytes": 3, "comm_bytes": {"all-to-all": 8}},
        "kernels": [{"name": "a", "replicated": "x"}],
    }
    xla = {"peak_bytes": 4, "collectives": [{"kind": "all-to-all", "bytes": 10}]}
    found = kernels.judge(plan, xla, {"fits": False})
    assert (found["peak_ratio"], found["comm_ratio"], found["lacking"], found["whole"]) == (0.75, 0.8, None, ["a"])
    plain = {"fits": True, "predicted": {"comm_bytes": {"all-gather": 8}}}
    assert kernels.judge(plan, xla, plain)["lacking"] == ["all-to-all"]


def test_layouts_are_forced_by_names() -> None:
    assert dims_of("state.params['h']['attn']['query']['kernel']", 4, "tensor") == ((), (), ("x",), ())
    assert dims_of("state.params['wte']['embedding']", 2, "tensor") is None
    assert dims_of("batch['tokens']", 2, "tensor") == ((), ())
    assert dims_of("batch['tokens']", 2, "data") == (("x",), ())
    assert dims_of("state.opt_state[1][0].mu['wte']['embedding']", 2, "data") is None


def test_cases_have_names_of_their_own_and_force_each_layout_once() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert sorted(case.pins for case in CASES if case.pins) == sorted(PINS)


@pytest.mark.long
def test_kernels_runs() -> None:
    argv = [sys.executable, "-m", "bench.kernels", "--quick", "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["results"]["cases"]
    assert case["calls"] and case["part"] <= 0.25 and not case["whole"]
    assert case["lacking"] == case["lacking_compiled"] == []
    assert case["comm_ratio"] == pytest.approx(1, abs=0.05)
    assert case["peak_ratio"] == pytest.approx(1, abs=0.15)
