"""Files that are no programs: each command says one line, and ends with code 1."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from rhino.cli.main import main
from rhino.cli.opt import main as opt
from rhino.dialect.context import make_context, parse_text, to_bytecode, to_portable

TEXT = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n"
MODULE = parse_text(TEXT, make_context())
BYTECODE, PORTABLE = to_bytecode(MODULE), to_portable(MODULE)
UNREADABLE = {
    "gzip": b"\x1f\x8b" + random.Random(0).randbytes(300),
    "latin": "func.func @é() { return }".encode("latin1"),
    "magic": BYTECODE[:4],
    "cut": BYTECODE[:-20],
    "cut artifact": PORTABLE[:60],
    "no text": PORTABLE.replace(b"builtin", b"builti\xff"),
    "hlo": b"HloModule f\n\nENTRY main {\n  ROOT p = f32[4] parameter(0)\n}\n",
    "unicode": "// 漢字\nfunc.func @main() { nope.é return }".encode(),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str) -> None:
    file = tmp_path / "step.mlir"
    file.write_bytes(UNREADABLE[kind])
    assert main(["plan", str(file), "--cluster", "cpu:1"]) == 1
    planned = capfd.readouterr()
    assert planned.out == "" and planned.err.startswith(f"rhino plan: error: {file}") and planned.err.count("\n") == 1
    assert opt([str(file)]) == 1
    shown = capfd.readouterr()
    assert shown.out == "" and "Traceback" not in shown.err
    assert shown.err.startswith(f"{file}:") and ": error: " in shown.err.splitlines()[0]


def test_what_can_be_read_none_the_less(tmp_path: Path) -> None:
    for data in (TEXT.replace("\n", "\r\n").encode(), f"// ünï\n{TEXT}// 漢".encode(), BYTECODE, PORTABLE):
        file = tmp_path / "step.mlir"
        file.write_bytes(data)
        assert opt([str(file), "-o", str(tmp_path / "out.mlir")]) == 0
        assert main(["plan", str(file), "--cluster", "cpu:1", "-q"]) == 0


def test_folders_and_missing_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for file in (tmp_path, tmp_path / "missing.mlir"):
        assert main(["plan", str(file), "--cluster", "cpu:1"]) == 1
        assert opt([str(file)]) == 1
        assert capfd.readouterr().err.count("\n") == 3  # that of rhino-opt with a note
    (tmp_path / "step.mlir").write_text(TEXT)
    for output in (tmp_path, tmp_path / "no" / "out.mlir"):
        assert main(["plan", str(tmp_path / "step.mlir"), "--cluster", "cpu:1", "-o", str(output)]) == 1
        assert opt([str(tmp_path / "step.mlir"), "-o", str(output)]) == 1
        assert capfd.readouterr().err.count("\n") == 2


def test_nesting_beyond_the_stack_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "deep.mlir"
    file.write_text(f"module attributes {{a = {'[' * 100_000}{']' * 100_000}}} {{}}")
    done = subprocess.run(
        [sys.executable, "-m", "rhino.cli.opt", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == f"rhino-opt: error: {file}: parsing: C++ code ended the process (SIGSEGV)\n"
