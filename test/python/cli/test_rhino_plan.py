"""`rhino` and `rhino plan`: outputs, exit codes, one-line errors for every bad input, no traceback."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from dense import STEP

from rhino.api.plan import Plan
from rhino.cli.main import main

# The weight is cut into three: it is stored as [128, 3, 256].
FUSED = """
module @jit_step {
  func.func public @main(%w: tensor<128x768xf32> {tf.aliasing_output = 0 : i32} loc("state['w']"),
                         %x: tensor<64x128xf32> loc("batch")) -> tensor<128x768xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<64x128xf32>, tensor<128x768xf32>) -> tensor<64x768xf32>
    %q = stablehlo.slice %0 [0:64, 0:256] : (tensor<64x768xf32>) -> tensor<64x256xf32>
    %k = stablehlo.slice %0 [0:64, 256:512] : (tensor<64x768xf32>) -> tensor<64x256xf32>
    %v = stablehlo.slice %0 [0:64, 512:768] : (tensor<64x768xf32>) -> tensor<64x256xf32>
    %1 = stablehlo.multiply %q, %k : tensor<64x256xf32>
    %2 = stablehlo.concatenate %1, %v, %q, dim = 1
        : (tensor<64x256xf32>, tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<64x768xf32>
    %3 = stablehlo.dot_general %x, %2, contracting_dims = [0] x [0]
        : (tensor<64x128xf32>, tensor<64x768xf32>) -> tensor<128x768xf32>
    %4 = stablehlo.subtract %w, %3 : tensor<128x768xf32>
    return %4 : tensor<128x768xf32>
  }
}
"""
CLUSTER = ["--cluster", "dgx-h100:1"]


@pytest.fixture
def step(tmp_path: Path) -> Path:
    path = tmp_path / "step.mlir"
    path.write_text(STEP)
    return path


def test_table(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(step), *CLUSTER]) == 0
    out, err = capsys.readouterr()
    for text in ("Plan for dgx-h100:1, 8 devices, level O1", "state['w']", "f32[256,512]", "chosen", "planned in"):
        assert text in out
    assert err == ""


def test_every_output(step: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = {name: tmp_path / name for name in ("out.mlir", "out.mlirbc", "p.json", "p.html", "saved.json")}
    arguments = ["--json", str(out["p.json"]), "--report", str(out["p.html"]), "--save", str(out["saved.json"])]
    assert main(["plan", str(step), *CLUSTER, "-o", str(out["out.mlir"]), *arguments, "--quiet"]) == 0
    assert main(["plan", str(step), *CLUSTER, "-o", str(out["out.mlirbc"]), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    plan = Plan.from_module(out["out.mlir"].read_text())
    assert plan == Plan.from_module(out["out.mlirbc"].read_bytes()) == Plan.load(out["saved.json"])
    assert out["out.mlirbc"].read_bytes()[:4] == b"ML\xefR"
    data = json.loads(out["p.json"].read_text())
    assert data["search"]["seconds"] > 0 and data["mesh"] == [list(axis) for axis in plan.mesh]
    assert [a["name"] for a in data["arguments"]] == ["state['w']", "batch"]
    assert "<h1>Plan for dgx-h100:1</h1>" in out["p.html"].read_text()


def test_json_alone_on_standard_output(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stdout = SimpleNamespace(buffer=io.BytesIO())
    sys_stdout, sys.stdout = sys.stdout, stdout  # type: ignore[assignment]
    try:
        assert main(["plan", str(step), *CLUSTER, "--json", "-"]) == 0
    finally:
        sys.stdout = sys_stdout
    assert json.loads(stdout.buffer.getvalue())["cluster"] == "dgx-h100:1"


def test_options_reach_the_search(step: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    assert main(["plan", str(step), *CLUSTER, "--mesh", "4x2", "--json", str(path), "-q"]) == 0
    assert json.loads(path.read_text())["mesh"] == [["x", 4], ["y", 2]]


def test_standard_input_and_bytecode(step: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.mlirbc", tmp_path / "b.json"
    command = [sys.executable, "-m", "rhino.cli.main", "plan", "-", *CLUSTER, "-q"]
    done = subprocess.run([*command, "-o", str(first)], input=STEP.encode(), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert main(["plan", str(first), *CLUSTER, "--json", str(second), "-q"]) in (0, 1), (
        "a planned module may be planned again"
    )


def test_same_input_same_bytes_in_every_process(step: Path, tmp_path: Path) -> None:
    saved = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.json"
        command = [sys.executable, "-m", "rhino.cli.main", "plan", str(step), *CLUSTER, "-q", "--save", str(path)]
        subprocess.run(command, check=True, timeout=60, env={**os.environ, "PYTHONHASHSEED": seed})
        saved.append(path.read_bytes())
    assert saved[0] == saved[1]


BAD = [
    ("", "the file is empty; give"),
    ("  \n", "the file is empty"),
    ("module {", r"step.mlir:1:"),
    ("func.func @main( {", "step.mlir:1:"),
    ("module { func.func @main() { nonsense.op } }", "step.mlir:1:"),
    (
        "module { func.func @step() { return } func.func @other() { return } }",
        r"step.mlir: .*function @main but several public ones: @step, @other",
    ),
    (
        "module { func.func @main(%a: tensor<?x4xf32>) -> tensor<?x4xf32> { return %a : tensor<?x4xf32> } }",
        r"step.mlir:1:26: .*static shapes",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_modules(step: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    step.write_text(text)
    assert main(["plan", str(step), *CLUSTER]) == 1
    _one_line(capsys, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "none.mlir", *CLUSTER], "none.mlir: cannot read: No such file"),
        (["plan", "STEP", "--cluster", "dgx-h1000:1"], "no such preset or file; did you mean"),
        (["plan", "STEP", *CLUSTER, "--mesh", "3x3"], "mesh 3x3 has 9 devices but cluster dgx-h100:1 has 8"),
        (["plan", "STEP", *CLUSTER, "--mesh", "axb"], "mesh 'axb' is not a list of positive sizes"),
        (["plan", "STEP", *CLUSTER, "--memory-limit", "lots"], "memory limit 'lots' is not a positive number"),
        (["plan", "STEP", *CLUSTER, "--memory-limit", "1KiB"], "KiB|GiB|memory"),
        (["plan", "STEP", *CLUSTER, "--json", "no/such/folder/p.json"], "cannot write there"),
        (["plan", "STEP", *CLUSTER, "-o", "/"], "cannot write there"),
    ],
)
def test_bad_requests(step: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main([str(step) if word == "STEP" else word for word in arguments]) == 1
    _one_line(capsys, message)


def _one_line(capsys: pytest.CaptureFixture[str], message: str) -> None:
    import re

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rhino plan: error: ") and err.count("error: ") == 1 and err.count("\n") == 1, err
    assert re.search(message, err), err


def test_a_binary_file(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step.write_bytes(b"\x7fELF\x02\x01\x01\x00\x00")
    assert main(["plan", str(step), *CLUSTER]) == 1
    _one_line(capsys, "neither MLIR text nor MLIR bytecode")
    step.write_bytes(b"ML\xefR\x01\x02garbage")
    assert main(["plan", str(step), *CLUSTER]) == 1
    _one_line(capsys, "step.mlir")


def test_command_line_errors_are_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fly"]) == 2
    assert main(["plan", "x.mlir"]) == 2
    assert "missing --cluster; try rhino plan" in capsys.readouterr().err


def test_bugs_are_one_line_too(step: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("rhino.cli.plan.run", broken)
    assert main(["plan", str(step), *CLUSTER]) == 1
    _one_line(capsys, "unexpected ZeroDivisionError: division by zero; this is a bug, --debug shows where")
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "plan", str(step), *CLUSTER])


def test_help_and_version_load_nothing() -> None:
    code = (
        "import sys\nfrom rhino.cli.main import main\n"
        "assert main(['--help']) == 0 and main(['--version']) == 0\n"
        "assert not [m for m in ('jax', 'jaxlib', 'rich', 'numpy', 'yaml') if m in sys.modules]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for word in ("plan", "compile", "cluster", "rhino 0."):
        assert word in done.stdout


def test_fused_parameters_are_stored_strided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fused.mlir").write_text(FUSED)
    out, data, saved, again = (tmp_path / name for name in ("out.mlir", "p.json", "saved.json", "again.json"))
    command = ["plan", str(tmp_path / "fused.mlir"), "--cluster", "cpu", "-o", str(out), "--json", str(data)]
    assert main([*command, "--save", str(saved)]) == 0
    assert "f32[128,768] as [128,3,256]" in capsys.readouterr().out
    row = json.loads(data.read_text())["arguments"][0]
    assert (row["shape"], row["stored_shape"], len(row["sharding"])) == ([128, 768], [128, 3, 256], 3)
    assert Plan.load(saved) == Plan.from_module(out.read_text())
    compiled = ["compile", str(out), "--target", "cpu", "--json", str(again)]
    code = f"from rhino.cli.main import main; raise SystemExit(main({compiled!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(again.read_text())["alias_bytes"] > 0


def test_arguments_that_are_strided_already_are_planned_as_stored(tmp_path: Path) -> None:
    (tmp_path / "stored.mlir").write_text("""
        func.func @main(%w: tensor<128x3x256xf32> {rhino.role = "param", tf.aliasing_output = 0 : i32, rhino.strided =
              {shape = [128, 768], dims = [{dim = 1 : i64, factors = [3, 256]}]}} loc("w"),
            %x: tensor<64x128xf32> loc("x")) -> (tensor<128x3x256xf32>, tensor<64x3x256xf32>) {
          %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
              : (tensor<64x128xf32>, tensor<128x3x256xf32>) -> tensor<64x3x256xf32>
          return %w, %0 : tensor<128x3x256xf32>, tensor<64x3x256xf32>
        }""")
    out = tmp_path / "out.mlir"
    assert main(["plan", str(tmp_path / "stored.mlir"), *CLUSTER, "-o", str(out), "--quiet"]) == 0
    plan = Plan.from_module(out.read_text())
    for tensor in (plan.arguments[0], plan.outputs[0]):
        assert (tensor.shape, tensor.stored_shape) == ((128, 768), (128, 3, 256))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("hello world", "; rhino-opt FILE shows the line; jax writes one: jax.jit"),
        ("import jax\n", "; rhino-opt FILE shows the line; jax writes one: jax.jit"),
        ("", "; give the StableHLO of a step; jax writes one: jax.jit"),
        ("\0", "; give a .mlir or .mlirbc file; jax writes one: jax.jit"),
    ],
)
def test_what_is_no_module_says_how_to_get_one(
    step: Path, capsys: pytest.CaptureFixture[str], text: str, remedy: str
) -> None:
    step.write_text(text)
    assert main(["plan", str(step), *CLUSTER]) == 1
    assert remedy in capsys.readouterr().err


@pytest.mark.parametrize(("given", "meant"), [("h100", "dgx-h100"), ("A100", "dgx-a100"), ("dgx-h10", "dgx-h100")])
def test_the_cluster_that_was_meant(step: Path, capsys: pytest.CaptureFixture[str], given: str, meant: str) -> None:
    assert main(["plan", str(step), "--cluster", given]) == 1
    _one_line(capsys, rf"no such preset or file; did you mean {meant}\? known: .* rhino cluster show dgx-h100 --yaml")
