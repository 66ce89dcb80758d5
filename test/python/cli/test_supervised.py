"""Commands whose C++ code ends the process: one line, exit code 1, and what was printed before stays in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

HEAD = "import os, signal, sys\nfrom rhino.cli.supervised import show_native, supervised, task\n"


def _run(body: str, verbose: bool = False) -> subprocess.CompletedProcess[str]:
    program = HEAD + "def work():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    program += f"sys.exit(supervised('tool', work, verbose={verbose}))\n"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_an_abort_is_one_line_with_its_reason() -> None:
    body = (
        "task('f.mlir: \\'some-pass\\'')\nprint('half', flush=True)\n"
        "os.write(2, b'F1123 04:30:01.000000   17 a/b.cc:42] Check failed: x > 1 too small\\n')\n"
        "os.write(2, b'*** stack: ***\\n @ 0x1\\n')\n"
        "os.abort()"
    )
    done = _run(body)
    assert done.returncode == 1 and done.stdout == "half\n"
    message = "tool: error: f.mlir: 'some-pass': C++ code ended the process (SIGABRT): Check failed: x > 1 too small\n"
    assert done.stderr == message
    shown = _run(body, verbose=True).stderr
    assert shown.endswith(message) and "*** stack" in shown and "a/b.cc:42" in shown


@pytest.mark.parametrize("end", ["\\n", ""])
def test_a_segmentation_fault_keeps_what_was_printed_before(end: str) -> None:
    done = _run(f"os.write(2, b'IR dump{end}')\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == 1
    assert done.stderr == "IR dump\ntool: error: C++ code ended the process (SIGSEGV)\n"


def test_a_process_out_of_memory_says_so() -> None:
    done = _run("os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 1 and "as systems do when memory runs out" in done.stderr
    assert done.stderr.count("\n") == 1


def test_messages_keep_their_order() -> None:
    done = _run(
        "print('first', file=sys.stderr)\nos.write(2, b'second\\n')\nshow_native()\nprint('third', file=sys.stderr)\n"
        "os.write(2, b'fourth\\n')\nreturn 3"
    )
    assert done.returncode == 3 and done.stderr.split() == ["first", "second", "third", "fourth"]


@pytest.mark.parametrize(("body", "code"), [("sys.exit(2)", 2), ("raise KeyError('x')", 1), ("return 0", 0)])
def test_exit_codes_are_the_commands_own(body: str, code: int) -> None:
    done = _run(body)
    assert done.returncode == code and ("KeyError" in done.stderr) == ("KeyError" in body)


def test_whoever_ends_the_parent_ends_the_work() -> None:
    program = HEAD + (
        "import time\ndef work():\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n    return 0\n"
        "sys.exit(supervised('tool', work))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_pass_that_aborts_is_one_line_of_rhino_opt(tmp_path) -> None:  # type: ignore[no-untyped-def]
    # Nothing refuses this one beforehand: results of one operation that are partial over different axes.
    source = tmp_path / "rng.mlir"
    source.write_text("""sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<2xui64>) -> (tensor<2xui64>, tensor<4x8xui32>) {
  %0:2 = stablehlo.rng_bit_generator %x, algorithm = THREE_FRY {sdy.sharding = #sdy.sharding_per_value<[
      <@mesh, [{}]>, <@mesh, [{}, {}], unreduced={"x"}>]>} : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4x8xui32>)
  return %0#0, %0#1 : tensor<2xui64>, tensor<4x8xui32>
}
""")
    passes = "--sdy-insert-explicit-reshards=enable-full-version=true"
    command = [sys.executable, "-m", "rhino.cli.opt", str(source), passes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    start = f"rhino-opt: error: {source}:2:1: 'sdy-insert-explicit-reshards': C++ code ended the process (SIGABRT): "
    assert done.stderr.startswith(start + "Check failed")
