"""What plan_quality makes of plans: ratios, fidelity, the summary; and that a run is kept and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import _quality_tables as quality
from bench import plan_quality
from bench._quality_cases import CLUSTERS, FULL, STANDARD, Case

ROOT = Path(__file__).resolve().parents[3]


def plan(name: str, seconds: float | None, **more: Any) -> dict[str, Any]:
    """A plan's record; without seconds, one that does not exist."""
    data: dict[str, Any] = {"plan": name, "cluster": {"devices": 8, "memory_bytes": 1000, "target": "h100"}, **more}
    if seconds is not None:
        data["predicted"] = {"step_time_s": seconds, "peak_bytes": 900, "comm_bytes": {"all-reduce": 90}}
        data["module"] = f"{name}.mlirbc"
    return data


def case(name: str, *plans: dict[str, Any]) -> dict[str, Any]:
    return {"case": name, "plans": list(plans), "error": "", **quality.judge({p["plan"]: p for p in plans})}


def compiled(name: str, peak_bytes: int, **sent: int) -> dict[str, Any]:
    found = plan(name, 1.0)
    collectives = [{"kind": kind.replace("_", "-"), "bytes": count} for kind, count in sent.items()]
    found["xla"] = {"peak_bytes": peak_bytes, "collectives": collectives}
    found["fidelity"] = quality.fidelity(found)
    return found


def test_a_found_plan_is_measured_against_the_cheapest_expert() -> None:
    row = case("a@c", plan("O1", 1.2), plan("data", 2.0), plan("zero3", 1.0), plan("expert", None))
    assert (row["best_expert"], row["O1_over_best"], row["O2_over_best"]) == ("zero3", 1.2, None)
    assert row["experts"] == {"data": 2.0, "zero3": 1.0}


def test_a_found_plan_is_no_expert() -> None:
    row = case("a@c", plan("O1", 1.0), plan("O2", 0.5), plan("data", 2.0))
    assert row["best_expert"] == "data"


def test_refusing_what_no_expert_can_do_is_right_and_the_other_is_told() -> None:
    right = case("big@c", plan("O1", None), plan("data", None))
    wrong = case("odd@c", plan("O1", None), plan("data", 1.0))
    found = quality.summary([right, wrong])["O1"]
    assert found["refused"] == ["big@c", "odd@c"]
    assert found["refused_though_an_expert_fits"] == ["odd@c"]


def test_a_level_there_is_not_is_no_refusal() -> None:
    row = case("a@c", plan("O1", 1.0), plan("O2", None, skipped=True), plan("data", 1.0))
    assert row["refused"] == {"O1": False, "O2": False}


def test_the_summary_names_the_worst_case_and_the_models_that_gain() -> None:
    rows = [
        case("a@c", plan("O1", 1.1), plan("data", 1.0)),
        case("b@c", plan("O1", 0.8), plan("data", 1.0)),
        case("b@d", plan("O1", 0.95), plan("data", 1.0)),
    ]
    found = quality.summary(rows)["O1"]
    assert found["worst"] == (1.1, "a@c")
    assert found["above_one"] == ["a@c"]
    assert found["models_clearly_better"] == ["b"]


def test_fidelity_compares_memory_and_every_kind() -> None:
    found = compiled("O1", 1000, all_reduce=100, all_gather=50)["fidelity"]
    assert (found["peak_ratio"], found["comm_ratios"]) == (0.9, {"all-reduce": 0.9, "all-gather": 0.0})
    assert found["fits"]


def test_more_memory_than_the_device_has_is_told_with_its_plan() -> None:
    row = case("a@c", compiled("O1", 1001, all_reduce=90), compiled("data", 1000, all_reduce=90))
    assert quality.summary([row])["over_memory"] == ["a@c: O1"]


def test_a_plan_that_was_not_compiled_has_no_fidelity() -> None:
    assert quality.fidelity(plan("O1", 1.0)) is None
    assert quality.fidelity(plan("O1", 1.0) | {"xla": {"error": "not done after 10 s"}}) is None


def test_tables_show_refusals_and_rules_that_do_not_apply() -> None:
    row = case("a@c", plan("O1", 1.0, mesh=[["x", 8]]), plan("data", 1.0), plan("zero3", None, applies=True))
    text = "\n".join(map(str, quality.tables([row], ("data", "zero3", "expert"))))
    line = next(line for line in text.splitlines() if line.startswith("a@c") and "memory" in line)
    assert line.split() == ["a@c", "1.00", "memory", "-"]


@pytest.mark.parametrize(
    ("which", "names"),
    [("none", []), ("found", ["O1"]), ("best", ["O1", "zero3"]), ("all", ["O1", "data", "zero3"])],
)
def test_what_is_compiled_is_chosen(which: str, names: list[str]) -> None:
    row = case("a@c", plan("O1", 1.0), plan("data", 2.0), plan("zero3", 1.0), plan("expert", None))
    assert [p["plan"] for p in plan_quality.to_compile(row, which)] == names


def test_a_plan_is_kept_by_what_it_depends_on(tmp_path: Path) -> None:
    source = tmp_path / "a.mlir"
    source.write_text("one")
    here, there = Case(STANDARD[0], CLUSTERS[0]), Case(STANDARD[0], CLUSTERS[1])
    first = plan_quality.plan_files(here, source, "v1")
    assert len(set(first.values())) == len(first)
    assert first == plan_quality.plan_files(here, source, "v1")
    assert not set(first.values()) & set(plan_quality.plan_files(here, source, "v2").values())
    assert not set(first.values()) & set(plan_quality.plan_files(there, source, "v1").values())
    source.write_text("two")
    assert not set(first.values()) & set(plan_quality.plan_files(here, source, "v1").values())


def test_models_have_names_of_their_own() -> None:
    assert len({model.name for model in FULL}) == len(FULL)


@pytest.mark.long
def test_a_second_run_plans_nothing_again() -> None:
    command = [sys.executable, "-m", "bench.plan_quality", "--quick", "--no-compile", "--json", "-"]
    command += ["--only", "mlp-tiny"]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, check=True) for _ in range(2)
    )
    assert "planning" not in second.stderr
    one, two = json.loads(first.stdout)["results"], json.loads(second.stdout)["results"]
    assert one == two
    assert one["summary"]["O1"]["compared"] == 1
