"""bench.pipeline: it runs, and its chain of stages has the programs it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench._pipeline_model import Chain, build

ROOT = Path(__file__).resolve().parents[3]


def test_stages_between_the_first_and_the_last_are_one_program() -> None:
    program, modules = build(Chain(5, 5, 2, layers=1, rows=2, width=4))
    middle = [f.index for f in program.fragments if f.kind == "backward" and 0 < f.stage < 4]
    assert len(middle) == 3
    assert len({modules[index] for index in middle}) == 1


@pytest.mark.long
def test_pipeline_runs() -> None:
    argv = [sys.executable, "-m", "bench.pipeline", "--quick", "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    (one,) = results["overhead"]
    assert set(one["seconds"]) == {"pipeline", "fragments", "plain jit"}
    assert one["programs"] < one["fragments"]
    free, slow = results["simulation"]
    assert slow["transfer_s"][0] > free["transfer_s"][0]
    assert slow["eager_over_1f1b"]["simulated"] < 1
