"""`rhino compile`: what it prints and writes, and one line per mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from annotated_modules import MLP

from rhino.cli.main import main

BARE = MLP.replace(', rhino.cluster = {name = "c", hosts = 2 : i64}', "")


@pytest.fixture
def mlp(tmp_path: Path) -> str:
    path = tmp_path / "mlp.mlir"
    path.write_text(MLP)
    return str(path)


def test_people_get_a_table(mlp: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", mlp]) == 0
    out = capsys.readouterr().out
    assert "compiled for cpu, 8 devices" in out
    assert next(line.split() for line in out.splitlines() if line.startswith("arguments")) == (
        "arguments 5,120 5.00 KiB".split()
    )
    assert next(line.split() for line in out.splitlines() if line.startswith("all-reduce")) == (
        "all-reduce f32 2 of 4 1 1,536 1.50 KiB".split()
    )


def test_machines_get_json_and_hlo(mlp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hlo = tmp_path / "step.hlo"
    assert main(["compile", mlp, "--json", "-", "--hlo", str(hlo)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["target"], data["devices"], data["argument_bytes"]) == ("cpu", 8, 5120)
    assert [(c["kind"], c["count"], c["bytes"], c["group_size"]) for c in data["collectives"]] == [
        ("all-reduce", 1, 1536, 4)
    ]
    assert hlo.read_text().startswith("HloModule step")


def test_a_step_in_time(mlp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "step.trace"
    assert main(["compile", mlp, "--timeline", str(trace), "--cluster", "cpu:1"]) == 0
    out = capsys.readouterr().out
    assert "in XLA's order, by the rates of cpu:1: " in out
    kind, sent, _, waited, _ = next(
        line.split() for line in out.splitlines() if line.startswith("all-reduce") and "f32" not in line
    )
    assert (kind, sent) == ("all-reduce", waited)  # nothing overlaps on a CPU
    assert any(event["name"].startswith("all-reduce") for event in json.loads(trace.read_text())["traceEvents"])
    assert main(["compile", mlp, "--timeline", str(trace), "--cluster", "cpu:1", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)["timeline"]
    assert found["total_s"] == pytest.approx(sum(found["compute_s"].values()) + sum(found["exposed_s"].values()))


def test_gpus_need_no_gpu(mlp: str, gpu_compiler: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", mlp, "--target", "h100", "--devices", "8", "--hosts", "2", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "h100"


def test_quiet_prints_nothing(mlp: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", mlp, "-q"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (
            MLP,
            ["--target", "h101"],
            "unknown target 'h101'; did you mean h100? known targets: cpu, cuda, v100, a100, h100, h200, b200",
        ),
        (MLP, ["--devices", "4"], "has 8 devices, and 4 were asked for"),
        (MLP, ["--json", "-", "--hlo", "-"], "cannot both go to standard output"),
        (
            BARE,
            ["--timeline", "F"],
            "the module names no cluster, by which --timeline could go; name one with --cluster",
        ),
        (
            MLP,
            ["--cluster", "cpu:1"],
            "--cluster is what --timeline and --overlap go by; give --timeline FILE or --overlap, too",
        ),
        (MLP, ["--json", "/no/such/folder/f.json"], "/no/such/folder/f.json: cannot write there"),
        ("module { nonsense }", [], "mlp.mlir:1:10: "),
        ("", [], "mlp.mlir: the file is empty"),
        ("module { func.func @f() { return } func.func @g() { return } }", [], "no function @main"),
        (MLP.replace("16x32", "?x32"), [], "dynamic shape"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(
    text: str, arguments: list[str], message: str, mlp: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(mlp).write_text(text)
    assert main(["compile", mlp, *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rhino compile: error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "no/such/file.mlir"]) == 1
    assert "no/such/file.mlir: cannot read" in capsys.readouterr().err
