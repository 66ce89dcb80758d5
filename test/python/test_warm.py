"""Forks of a server that has imported what they import: they behave as the processes that they stand for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import warm


@pytest.fixture(scope="module")
def server() -> str:
    return warm.serve(tempfile.mkdtemp(prefix="rhino-"), ["decimal"])


def run(server: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", warm.__file__, server, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.argv, sys.stdin.read()); sys.exit(3)",
        "raise ValueError('bad')",
        "import sys; sys.exit('a message')",
        "import os; os.kill(os.getpid(), 11)",
        "import atexit, threading; atexit.register(print, 'last'); threading.Timer(0.1, print, 'second').start()",
        "import os, sys; print(os.getcwd(), os.environ['MINE'], os.environ.get('JAX_PLATFORMS'), sys.path[0])",
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n  a: int\nprint(A(1), A.__module__)",
    ],
    ids=["arguments", "error", "message", "signal", "end", "environment", "module"],
)
def test_a_fork_does_what_a_process_does(server: str, code: str, tmp_path: Path) -> None:
    options = {"input": "words", "cwd": tmp_path, "env": {**os.environ, "MINE": "given"}}
    found = run(server, "-c", code, "more", **options)
    command = [sys.executable, "-c", code, "more"]
    expected = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert found.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_modules_and_scripts_run_as_the_main_program(server: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7")
    (tmp_path / "script.py").write_text(
        "import beside, sys\nif __name__ == '__main__': print(beside.VALUE, sys.argv[1:])"
    )
    assert run(server, str(tmp_path / "script.py"), "one").stdout == "7 ['one']\n"
    assert run(server, "-m", "script", "two", cwd=tmp_path).stdout == "7 ['two']\n"


def test_only_what_python_reads_at_its_start_makes_a_new_process(server: str) -> None:
    code = "import sys; print('decimal' in sys.modules, hash('text'))"
    (there, same), (again, other), (new, third) = (
        run(server, "-c", code, env={**os.environ, **more}).stdout.split()
        for more in ({}, {"XLA_FLAGS": "--other"}, {"PYTHONHASHSEED": "1"})
    )
    assert (there, again, new) == ("True", "True", "False")
    assert same == other != third


def test_nothing_outlives_who_asked_for_it(server: str) -> None:
    with open(os.devnull) as nothing:
        forked = warm.Forked(server, ["-c", "import time; time.sleep(600)"], [nothing.fileno()] * 3)
    process = psutil.Process(forked.pid)
    with pytest.raises(TimeoutError):
        forked.wait(0.01)
    del forked
    process.wait(60)


def test_the_server_ends_with_its_owner() -> None:
    code = f"import sys, tempfile; sys.path.insert(0, {os.path.dirname(warm.__file__)!r}); import warm\n"
    code += "print(warm.serve(tempfile.mkdtemp(), []), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()
        with open(os.devnull) as nothing:
            forked = warm.Forked(address, ["-c", "pass"], [nothing.fileno()] * 3)
        assert forked.wait(60) == 0
        server = next(one for one in psutil.Process(owner.pid).children() if warm.SERVER in one.cmdline())
        owner.send_signal(signal.SIGKILL)
    server.wait(60)
    assert not Path(address).exists()
