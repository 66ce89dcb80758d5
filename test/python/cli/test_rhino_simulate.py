"""`rhino simulate`: the numbers of every schedule, its outputs, and one-line errors for every bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rhino.cli.main import main

CHAIN = ["--stages", "4", "--microbatches", "8", "--forward", "1", "--backward", "2"]
SCHEDULES = ("gpipe", "1f1b", "kfkb", "eager-1f1b", "interleaved-1f1b", "zero-bubble")


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["simulate", *arguments, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    data: dict[str, Any] = json.loads(out)
    return data


@pytest.mark.parametrize(
    ("schedule", "transfer", "steady"),
    [("1f1b", "1", 4.5), ("eager-1f1b", "1", 3.0), ("1f1b", "1.5", 5.25), ("eager-1f1b", "1.5", 3.0),
     ("gpipe", "1", 3.0), ("gpipe", "3", 6.0)],
)  # fmt: skip
def test_steady_time_whatever_the_micro_batches(
    schedule: str, transfer: str, steady: float, capsys: pytest.CaptureFixture[str]
) -> None:
    for m in ("1", "6", "64"):
        data = simulated(capsys, "--schedule", schedule, *CHAIN, "--microbatches", m, "--transfer", transfer)
        assert data["steady_time_per_microbatch"] == steady
    assert data["microbatches"] == 64


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = simulated(capsys, "--schedule", "1f1b", *CHAIN)
    assert data == {
        "schema": 1,
        "schedule": "1f1b",
        "stages": 4,
        "microbatches": 8,
        "groups": [0, 1, 2, 3],
        "step_time": 33.0,
        "steady_time_per_microbatch": 3.0,
        "bubble_fraction": pytest.approx(9 / 33),
        "in_flight_peak": [4, 3, 2, 1],
        "warmup": [4, 3, 2, 1],
        "busy_time": [24.0] * 4,
        "exposed_transfer_time": [0.0] * 4,
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_as_a_table(schedule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--schedule", schedule, *CHAIN, "--transfer", "0.5"]) == 0
    out, err = capsys.readouterr()
    groups = 2 if schedule == "interleaved-1f1b" else 4
    assert out.startswith(f"{schedule}: 4 stages on {groups} groups, 8 micro-batches\nstep time ")
    assert "per micro-batch in steady state, bubble " in out and "waiting for transfers" in out
    assert err == ""


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(capsys, "--schedule", "kfkb", *CHAIN, "--k", "3")["in_flight_peak"] == [8, 8, 6, 3]
    assert simulated(capsys, "--schedule", "interleaved-1f1b", *CHAIN, "--groups", "4")["groups"] == [0, 1, 2, 3]
    assert simulated(capsys, "--schedule", "1f1b", *CHAIN, "--warmup", "8,5,2,1")["warmup"] == [8, 5, 2, 1]
    automatic = simulated(capsys, "--schedule", "1f1b", *CHAIN, "--transfer", "1", "--warmup", "auto")
    assert automatic["warmup"] == [7, 5, 3, 1]
    slow = simulated(capsys, "--schedule", "1f1b", *CHAIN, "--forward", "1,1,2,1", "--backward", "2,2,4,2")
    assert slow["busy_time"] == [24.0, 24.0, 48.0, 24.0] and slow["steady_time_per_microbatch"] == 6.0
    whole = simulated(capsys, "--schedule", "1f1b", *CHAIN, "--transfer", "0.5")
    split = simulated(capsys, "--schedule", "1f1b", *CHAIN, "--transfer", "0.5", "--weight", "1")
    assert split["step_time"] < whole["step_time"] and split["busy_time"] == whole["busy_time"]
    # Half of backward can wait unless told otherwise: ZB-H1's step.
    assert simulated(capsys, "--schedule", "zero-bubble", *CHAIN)["step_time"] == 8 * 3 + 3


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, trace = tmp_path / "out.json", tmp_path / "trace.json"
    assert main(["simulate", "--schedule", "1f1b", *CHAIN, "--json", str(out), "--trace", str(trace), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert json.loads(out.read_text())["step_time"] == 33.0
    slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    assert max(e["ts"] + e["dur"] for e in slices) == 33e6
    assert main(["simulate", "--schedule", "1f1b", *CHAIN, "--trace", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["displayTimeUnit"] == "ms"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedule", "fifo"], "unknown schedule 'fifo'; known are gpipe, 1f1b"),
        (["--schedule", "1f1b", "--stages", "0"], "--stages 0 is not a positive number"),
        (["--schedule", "1f1b", "--microbatches", "0"], "1f1b needs at least one micro-batch, got 0"),
        (["--schedule", "1f1b", "--forward", "fast"], "--forward 'fast' is not a number"),
        (["--schedule", "1f1b", "--forward", "1,2"], "--forward has 2 values, but there are 4 stages"),
        (["--schedule", "1f1b", "--forward=-1"], "forward_s of stage 0 is -1.0"),
        (["--schedule", "1f1b", "--forward", "nan"], "forward_s of stage 0 is nan"),
        (["--schedule", "1f1b", "--transfer=-1"], "edge 0 -> 1 takes -1.0 seconds"),
        (["--schedule", "1f1b", "--weight", "3"], "the weight part of stage 0 takes 3, but its backward takes 2"),
        (["--schedule", "1f1b", "--weight", "0"], "no stage has a weight part to delay"),
        (["--schedule", "1f1b", "--groups", "2"], "1f1b runs one stage per group"),
        (["--schedule", "interleaved-1f1b", "--groups", "5"], "4 stages cannot run on 5 groups"),
        (["--schedule", "gpipe", "--k", "2"], "gpipe does not take k"),
        (["--schedule", "1f1b", "--warmup", "1.5"], "--warmup '1.5' must be whole numbers"),
        (["--schedule", "1f1b", "--warmup", "1,2,1,1"], "let warm-up counts fall along every edge"),
        (["--schedule", "1f1b", "--json", "/nowhere/x.json"], "/nowhere/x.json: cannot write there"),
    ],
)
def test_one_line_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *CHAIN, *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rhino simulate: error: ") and err.count("\n") == 1
    assert message in err


def test_the_command_loads_neither_jax_nor_mlir() -> None:
    program = (
        "import sys\nfrom rhino.cli.main import main\n"
        f"main({['simulate', '--schedule', '1f1b', *CHAIN, '-q']!r})\n"
        "assert not {'jax', 'jaxlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
