"""The benchmark of stages runs to a record in which no order of the units beats the cut of the graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_stages_are_compared_with_the_orders_of_their_units() -> None:
    argv = [sys.executable, "-m", "bench.stages", "--quick", "--only", "two_tower", "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["results"]["cases"]
    assert case["status"] == "optimal"
    assert case["orders"] == 5
    assert case["step_s"] <= case["best_order_s"] * (1 + 1e-9)
    assert case["best_order_s"] < case["worst_order_s"]
