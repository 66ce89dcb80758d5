"""rhino-opt as a process: no jax, no traceback unless asked, speed; and its parts that FileCheck tests cannot reach."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from rhino.cli.opt_arguments import FLAGS, parse_arguments
from rhino.cli.opt_diagnostics import Printer, compare, expectations
from rhino.errors import RhinoError
from rhino.ir.diagnostics import Diagnostic, Position

BROKEN_PASS = """
import sys
from typing import ClassVar
import rhino.passes.registry as registry

@registry.register
class Broken(registry.Pass):
    "Raise an exception nobody expects."
    name: ClassVar[str] = "rhino-broken"

    def run(self, module, log):
        for op in module.body.operations[0].regions[0].blocks[0].operations:
            with log.at(op):
                {}[op.operation.name]

registry.TABLE["rhino-broken"] = "__main__:Broken"
from rhino.cli.opt import main
sys.exit(main(sys.argv[1:]))
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120)


def opt(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rhino.cli.opt", *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "step.mlir"
    path.write_text("func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n")
    return path


def test_an_exception_in_a_pass_is_an_error_at_the_operation(source: Path) -> None:
    done = run(BROKEN_PASS, str(source), "--rhino-broken")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[:3] == [
        f"{source}:2:3: error: 'rhino-broken': unexpected KeyError: 'func.return'",
        "  return %a : tensor<4xf32>",
        "  ^",
    ]
    assert "Traceback" not in done.stderr
    debug = run(BROKEN_PASS, str(source), "--rhino-broken", "--debug")
    assert debug.returncode == 1
    assert "Traceback (most recent call last)" in debug.stderr


def test_running_passes_does_not_import_jax(source: Path) -> None:
    program = (
        "import sys\nfrom rhino.cli.opt import main\n"
        "code = main(sys.argv[1:])\nassert code == 0\nprint('jax' in sys.modules, file=sys.stderr)"
    )
    passes = "builtin.module(inline,rhino-classify-args,sdy-propagation-pipeline,rhino-verify)"
    done = run(program, str(source), f"--pass-pipeline={passes}")
    assert done.stderr.strip() == "False", done.stderr


def test_a_reader_that_stops_reading_is_no_error_message(source: Path) -> None:
    program = f"{sys.executable} -m rhino.cli.opt --help | head -c 10"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_help_imports_neither_jax_nor_numpy() -> None:
    # That, not the printing, is what would take seconds.
    program = (
        "import sys\nfrom rhino.cli.opt import main\nassert main(['--help']) == 0\n"
        "print(sorted({'jax', 'jaxlib', 'numpy', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = run(program)
    assert "rhino-plan-sharding" in done.stdout
    assert done.stderr.strip() == "[]", done.stderr


def test_a_large_module_goes_round(tmp_path: Path) -> None:
    lines = [f"  %{i + 1} = stablehlo.add %{i}, %arg0 : tensor<128x1024xf32>" for i in range(60000)]
    text = (
        "func.func @main(%arg0: tensor<128x1024xf32>) -> tensor<128x1024xf32> {\n"
        "  %0 = stablehlo.tanh %arg0 : tensor<128x1024xf32>\n"
        + "\n".join(lines)
        + "\n  return %60000 : tensor<128x1024xf32>\n}\n"
    )
    path = tmp_path / "large.mlir"
    path.write_text(text)
    assert path.stat().st_size > 3_500_000
    # Under a second on an idle machine; what is quadratic in 60,000 operations does not end in time.
    done = opt(str(path), "-o", str(tmp_path / "out.mlir"))
    assert done.returncode == 0
    assert (tmp_path / "out.mlir").stat().st_size > 3_500_000


def test_every_flag_is_documented_and_parsed() -> None:
    for group in FLAGS.values():
        for name, flag in group.items():
            assert flag.doc
            given = [f"--{name}={'1' if flag.value in ('N', 'BOOL') else 'x'}" if flag.value else f"--{name}"]
            assert parse_arguments(given).has(name) or name == "verify-each"


def test_arguments() -> None:
    parsed = parse_arguments(["-o", "out", "-cse", "--rhino-verify", "in.mlir", "--sdy-close-shardings=a=1 b=2"])
    assert parsed.flags == {"o": "out"}
    assert parsed.input == "in.mlir"
    assert parsed.passes == ["cse", "rhino-verify", "sdy-close-shardings{a=1 b=2}"]
    assert parse_arguments([]).input == "-"
    assert parse_arguments(["--", "--odd-name"]).input == "--odd-name"
    assert not parse_arguments(["--emit-bytecode=false"]).has("emit-bytecode")
    with pytest.raises(RhinoError, match="more than one input"):
        parse_arguments(["a", "b"])


def test_printing_follows_tabs_and_names_the_input() -> None:
    out = io.StringIO()
    printer = Printer(out, "x.mlir", {"x.mlir": "first\n\t\tsecond here"})
    printer(Diagnostic("error", "wrong", Position("-", 2, 10), (Diagnostic("note", "why", Position("<unknown>")),)))
    assert out.getvalue() == "x.mlir:2:10: error: wrong\n\t\tsecond here\n\t\t       ^\nx.mlir:1:1: note: why\n"


def test_a_whole_function_in_a_note_is_cut() -> None:
    out = io.StringIO()
    Printer(out, "x")(Diagnostic("note", "see current operation: " + "long " * 1000, Position("x")))
    assert len(out.getvalue()) < 500


TEXT = """\
// expected-error @below {{one}}
// expected-note-re @below {{two{{s+}}[x]}}
op
// expected-error @above {{five}}
// expected-error @unknown {{six}}
// expected-error @-1 {{seven}}
op  // expected-warning {{three}} expected-remark 2 {{four}}
"""
REPORTED = [
    Diagnostic("error", "say one", Position("f", 3), (Diagnostic("note", "twosss[x]", Position("f", 3)),)),
    Diagnostic("warning", "three", Position("-", 7)),
    Diagnostic("remark", "four", Position("f", 7)),
    Diagnostic("remark", "four again", Position("f", 7)),
    Diagnostic("error", "five", Position("f", 3)),
    Diagnostic("error", "six", Position("<unknown>")),
    Diagnostic("error", "seven", Position("f", 5)),
]


def test_expectations_are_matched() -> None:
    assert compare(expectations(TEXT, "f"), REPORTED, "f") == []


@pytest.mark.parametrize("left_out", range(len(REPORTED)))
def test_each_expectation_is_needed(left_out: int) -> None:
    reported = REPORTED[:left_out] + REPORTED[left_out + 1 :]
    assert all("was not produced" in d.message for d in compare(expectations(TEXT, "f"), reported, "f"))
    assert compare(expectations(TEXT, "f"), reported, "f")


def test_severity_and_line_must_agree() -> None:
    text = "// expected-error @+1 {{wrong}}"
    for reported in (Diagnostic("warning", "wrong", Position("f", 2)), Diagnostic("error", "wrong", Position("f", 3))):
        assert len(compare(expectations(text, "f"), [reported], "f")) == 2
