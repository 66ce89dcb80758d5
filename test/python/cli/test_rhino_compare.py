"""`rhino compare`: every form of another plan, its outputs, one-line errors, the same bytes each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dense import STEP

from rhino.cli.main import main

# The same as jax lowers it with shardings on its arguments.
ANNOTATED = STEP.replace("func.func public", 'sdy.mesh @mesh = <["d"=8]>\n  func.func public').replace(
    'loc("batch")', '{sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>} loc("batch")'
)
SPECS = {"mesh": {"data": 2, "model": 4}, "rules": [["/w$", [None, "model"]], ["batch", ["data"]]]}
CLUSTER = ["--cluster", "dgx-h100:1"]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return _write(tmp_path, "step.mlir", STEP)


def _write(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_specs_against_what_is_found(step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = _write(tmp_path, "mine.json", SPECS)
    assert main(["compare", str(step), *CLUSTER, "--specs", str(specs)]) == 0
    out, err = capsys.readouterr()
    for text in (
        "Plans for dgx-h100:1, predicted", "data=2, model=4", "Rhino", "mine takes", "fits in 71.2 GiB",
        "laid out differently", "{-, model}", "sending takes", "sent by all-reduce",
    ):  # fmt: skip
        assert text in out
    assert max(map(len, out.splitlines())) <= 120
    assert err == ""


def test_json_has_all_plans_and_the_same_bytes_each_time(step: Path, tmp_path: Path) -> None:
    specs = _write(tmp_path, "mine.json", SPECS)
    written = []
    for name in ("a.json", "b.json"):
        arguments = ["--specs", str(specs), "--against", "data", "--json", str(tmp_path / name), "-q"]
        assert main(["compare", str(step), *CLUSTER, *arguments]) == 0
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    data = json.loads(written[0])
    assert [plan["name"] for plan in data["plans"]] == ["Rhino", "mine", "data"]
    assert data["plans"][1]["mesh"] == [["data", 2], ["model", 4]]
    assert all(plan["fits"] for plan in data["plans"])
    mine = data["comparisons"][0]
    assert mine["with"] == "mine" and mine["explanation"]
    assert mine["differences"][0]["theirs"] == "{-, model}"
    # Every byte that is predicted is of a parameter, or of the rest.
    assert sum(data["plans"][1]["comm_bytes"].values()) > 0


def test_a_plan_that_does_not_fit_is_priced_and_said(
    step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specs = _write(tmp_path, "whole.json", {"mesh": {"d": 8}, "rules": [[".", []]]})
    assert main(["compare", str(step), *CLUSTER, "--specs", str(specs), "--memory-limit", "700KB"]) == 0
    out = capsys.readouterr().out
    assert "whole does not fit: it needs 1." in out
    assert "may use 684 KiB." in out


def test_a_module_with_shardings_and_saved_plans(
    step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotated = _write(tmp_path, "annotated.mlir", ANNOTATED)
    saved, planned = tmp_path / "saved.json", tmp_path / "planned.mlir"
    assert main(["plan", str(step), *CLUSTER, "--mesh", "8", "--save", str(saved), "-o", str(planned), "-q"]) == 0
    others = [str(annotated), str(saved), str(planned)]
    assert main(["compare", str(step), *CLUSTER, "--mesh", "8", "--against", *others]) == 0
    out = capsys.readouterr().out
    assert "annotated takes" in out
    for name in ("saved", "planned"):
        assert f"{name} takes" in out and "as long as Rhino's plan" in out


def test_xla_measures_both(step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = _write(tmp_path, "mine.json", SPECS)
    arguments = ["--specs", str(specs), "--compile", "--target", "cpu"]
    assert main(["compare", str(step), *CLUSTER, *arguments]) == 0
    out = capsys.readouterr().out
    assert "XLA: peak memory" in out
    assert "XLA: sent by all-reduce" in out


def test_what_its_author_should_know_is_said(step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs = _write(tmp_path, "mine.json", {"mesh": {"d": 8}, "rules": [["batch", ["d"]], ["kernel", ["d"]]]})
    assert main(["compare", str(step), *CLUSTER, "--specs", str(specs)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mine: rule 'kernel' is of no argument: none has it in its path, as in state/w" in out
    assert "mine: 1 argument has no spec and is whole on every device: state['w']" in out


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        (
            {"mesh": {"d": 8}, "rules": [["batch", ["e"]]]},
            "batch: rule 'batch' (e) names axis 'e', which the mesh has not",
        ),
        (
            {"mesh": {"d": 4}, "rules": [["batch", ["d"]]]},
            "the specs' mesh d=4 has 4 devices, and cluster dgx-h100:1 has 8",
        ),
        ({"mesh": {"d": 8}, "rule": []}, "rule is not known"),
    ],
)
def test_specs_that_do_not_fit_are_one_line(
    step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], specs: Any, message: str
) -> None:
    path = _write(tmp_path, "mine.json", specs)
    assert main(["compare", str(step), *CLUSTER, "--specs", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("rhino compare: error: ") and message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no plan to compare with; give --specs FILE.json"),
        (["--against", "megatrom"], "megatrom is neither a file nor an expert; give a file, or one of data,"),
        (["--against", "expert"], "GShard expert parallel has no plan of the step"),
        (["--against", "step.mlir"], "no argument of the module has a sharding; lower it with in_shardings"),
        (["--against", "data", "--target", "cpu"], "--target is what --compile compiles for; give --compile, too"),
    ],
)
def test_errors_are_one_line(
    step: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(step.parent)
    assert main(["compare", str(step), *CLUSTER, *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert message in err
