"""The context: no jax, every dialect, errors to handlers, and files named in locations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from jaxlib.mlir import ir

from rhino.dialect.context import copied, make_context, parse_bytes, parse_file, parse_text

TEXT = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n"


def test_a_context_loads_without_jax() -> None:
    program = "import sys; from rhino.dialect.context import make_context; make_context(); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_contexts_are_independent() -> None:
    strict, loose = make_context(), make_context(allow_unregistered=True)
    assert not strict.allow_unregistered_dialects
    assert loose.allow_unregistered_dialects


def test_files_text_and_bytes_are_the_same_module(tmp_path: Path) -> None:
    context = make_context()
    path = tmp_path / "x.mlir"
    path.write_text(TEXT)
    module = parse_file(path, context)
    assert str(module) == str(parse_text(TEXT, context)) == str(parse_bytes(TEXT.encode(), context))
    assert str(path) in str(module.body.operations[0].location)
    with pytest.raises(OSError, match="No such file"):
        parse_file(tmp_path / "missing.mlir", context)


def test_a_copy_is_the_same_module_and_stays_when_the_other_changes() -> None:
    module = parse_text(f'module @step attributes {{"x.y" = 1 : i32}} {{\n{TEXT}}}\n', make_context())
    before = module.operation.get_asm(enable_debug_info=True)
    copy = copied(module)
    for op in list(module.body.operations):
        op.operation.erase()
    del module.operation.attributes["x.y"]
    assert copy.operation.get_asm(enable_debug_info=True) == before
    assert copy.operation.verify()


def test_errors_reach_handlers() -> None:
    context = make_context()
    seen: list[str] = []

    def handle(diagnostic: ir.Diagnostic) -> bool:
        seen.append(diagnostic.message)
        return True

    context.attach_diagnostic_handler(handle)
    with pytest.raises(ir.MLIRError):
        parse_text("func.func @", context)
    assert len(seen) == 1
