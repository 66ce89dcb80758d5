"""bench._namespaces: hosts are made, shaped, and gone afterwards, whatever happened meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bench._common import BenchError
from bench._namespaces import Network, available, network, remove_leftovers

ROOT = Path(__file__).resolve().parents[3]
MISSING = available()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def left(pid: int) -> list[str]:
    """All that still bears the number of a process: namespaces, and files of theirs."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    found = [line.split()[0] for line in listed.splitlines() if line.startswith(f"rhino-{pid}-")]
    folder = Path("/etc/netns")
    return found + [path.name for path in folder.glob(f"rhino-{pid}-*")]


def test_hosts_reach_each_other_by_address_and_themselves_by_name() -> None:
    with network(3) as made:
        assert len(left(os.getpid())) == 2 * 3 + 1  # the switch has no file
        ping = ["ping", "-c", "1", "-W", "5", made.hosts[2].address]
        name = [sys.executable, "-c", "import socket; print(socket.gethostbyname(socket.gethostname()))"]
        found = made.run({0: ping if _has_ping() else ["true"], 1: name}, 30)
        assert found[1].strip() == made.hosts[1].address
    assert left(os.getpid()) == []


def _has_ping() -> bool:
    return subprocess.run(["which", "ping"], capture_output=True).returncode == 0


def test_a_stream_gets_the_rate_and_no_more() -> None:
    # A loaded machine can be slower than the link, never faster: 32 MiB at 100 Mbit/s outweigh the first burst.
    with network(2, 100e6) as made:
        goodput = made.goodput(32 << 20)
    assert goodput < 1.02 * made.bytes_s
    assert goodput > 0.5 * made.bytes_s


def test_an_exception_removes_all_and_ends_what_runs() -> None:
    with pytest.raises(ZeroDivisionError), network(2) as made:
        process = made.start(1, ["sleep", "1000"]).process
        assert process.poll() is None
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL
    assert left(os.getpid()) == []


def test_a_process_that_fails_or_hangs_is_an_error_with_its_text() -> None:
    with network(2) as made:
        with pytest.raises(BenchError, match=r"exit code 3\nso it is"):
            made.run({0: ["sh", "-c", "echo so it is >&2; exit 3"], 1: ["sleep", "1000"]}, 30)
        with pytest.raises(BenchError, match="not done after 1 s"):
            made.run({0: ["sleep", "1000"]}, 1)
        assert made.started == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_removes_all(number: signal.Signals) -> None:
    process = _run_network()
    assert len(left(process.pid)) == 2 * 2 + 1
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert left(process.pid) == []


def test_the_next_run_removes_what_a_killed_one_left() -> None:
    process = _run_network()
    process.kill()
    process.wait()
    assert len(left(process.pid)) == 2 * 2 + 1
    remove_leftovers()
    assert left(process.pid) == []


def test_two_networks_at_once_do_not_meet() -> None:
    process = _run_network()
    try:
        with network(2) as made:
            assert isinstance(made, Network)
            assert len(left(process.pid)) == 2 * 2 + 1
        assert len(left(process.pid)) == 2 * 2 + 1
    finally:
        process.terminate()
        process.wait(60)


def _run_network() -> subprocess.Popen[str]:
    """A process that made two hosts, with one of its own in each, and waits."""
    script = """
        import time
        from bench._namespaces import network
        with network(2) as made:
            for index in range(2):
                made.start(index, ["sleep", "1000"])
            print("made", flush=True)
            time.sleep(1000)
    """
    argv = [sys.executable, "-c", textwrap.dedent(script)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    return process
