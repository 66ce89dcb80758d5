"""bench.joint_search: it runs, and compares like with like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_joint_search_runs() -> None:
    argv = [sys.executable, "-m", "bench.joint_search", "--quick", "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert results["failures"] == []
    (case,) = results["cases"]
    found, experts = case["found"], case["experts"]
    assert 0 < found["peak_bytes"] <= found["limit_bytes"]
    assert found["peak_bytes"] == max(found["groups_bytes"])
    assert experts["published"] is None  # 16 stages of 4 are more than 8 devices
    best = experts["megatron_3d"]
    assert best["fits"]
    assert found["step_time_s"] <= best["step_time_s"]
    assert best["step_time_s"] == min(t["step_time_s"] for t in experts["trials"] if t["fits"])
