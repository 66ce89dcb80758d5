"""What `rhino` says to a bad command line, and to none: one line, with what to write instead."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from rhino.cli.main import main


def test_rhino_alone_shows_where_to_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "Try first:  rhino cluster list" in out
    assert "rhino plan step.mlir --cluster dgx-h100:1" in out
    assert "A step:     jax.jit(step).lower(*args).as_text(debug_info=True)" in out
    for command in ("plan", "compile", "simulate", "reshard", "cluster"):
        assert f"\n  {command} " in out
    assert max(map(len, out.splitlines())) <= 100


def test_what_the_overview_says_to_try_first_works(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Try first:"))
    assert main(line.split()[3:5]) == 0
    assert "dgx-h100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("plna step.mlir", "rhino: error: no command 'plna'; did you mean plan?"),
        ("fly", "rhino: error: no command 'fly'; see rhino --help"),
        ("--fly", "rhino: error: missing COMMAND; rhino alone shows where to begin"),
        (
            "plan",
            "rhino plan: error: missing FILE, --cluster; "
            "try rhino plan step.mlir --cluster dgx-h100:1; rhino cluster list shows the clusters",
        ),
        ("plan a.mlir --cluster cpu --levle O1", "rhino plan: error: no option --levle; did you mean --level?"),
        ("plan a.mlir --cluster cpu --zzz=3", "rhino plan: error: no option --zzz; see rhino plan --help"),
        ("plan a.mlir --cluster cpu --level O9", "rhino plan: error: --level is 'O9' but must be one of O0, O1, O2"),
        (
            "plan a.mlir --cluster cpu --annotations ignored",
            "rhino plan: error: --annotations is 'ignored' but must be one of keep, ignore; did you mean ignore?",
        ),
        (
            "plan a.mlir --cluster cpu --budget soon",
            "rhino plan: error: --budget: invalid float value: 'soon'; see rhino plan --help",
        ),
        (
            "plan a.mlir b.mlir --cluster cpu",
            "rhino plan: error: one argument too many: b.mlir; "
            "try rhino plan step.mlir --cluster dgx-h100:1; rhino cluster list shows the clusters",
        ),
        ("cluster", "rhino cluster: error: missing ACTION; try rhino cluster list"),
        ("cluster shwo", "rhino cluster: error: no action 'shwo'; did you mean show?"),
        ("cluster show cpu --yml", "rhino cluster show: error: no option --yml; did you mean --yaml?"),
        (
            "compile a.mlir --devices none",
            "rhino compile: error: --devices: 'none' is not a positive integer; see rhino compile --help",
        ),
    ],
)
def test_a_bad_command_line_is_one_line_and_exit_code_2(
    words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.removesuffix("\n") == line


@pytest.mark.parametrize("command", ["plan", "compile", "simulate", "reshard", "cluster"])
def test_the_help_of_each_command_ends_with_one_to_try(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"\ntry rhino {command} " in capsys.readouterr().out


@pytest.mark.parametrize("command", ["simulate", "reshard"])
def test_commands_to_try_that_need_no_file_work(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    shown = capsys.readouterr().out.split("\ntry rhino ")[1]
    assert main(shown.split()) == 0


def test_the_version_is_looked_up_only_where_it_is_asked_for() -> None:
    code = (
        "import sys\nfrom rhino.cli.main import main\n"
        "assert main([]) == 0 and main(['plan', '--help']) == 0 and 'importlib.metadata' not in sys.modules\n"
        "assert main(['--version']) == 0 and 'importlib.metadata' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("rhino 0.")


def test_rhino_opt_does_not_wait_for_a_terminal() -> None:
    outside, inside = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "rhino.cli.opt", "--cse"], stdin=inside, capture_output=True, text=True, timeout=60
    )
    os.close(outside)
    os.close(inside)
    assert done.returncode == 1
    assert done.stderr.startswith("rhino-opt: error: no input (give a .mlir file, or - to type the module")
