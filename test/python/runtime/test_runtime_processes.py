"""Pipelines whose groups are on several processes: the values of the step, on every way of spreading them."""

from __future__ import annotations

from pathlib import Path

import processes

WORKER = Path(__file__).parent / "pipeline_worker.py"


def test_two_processes_run_what_one_does() -> None:
    outputs = processes.run(WORKER, 2, devices=2)
    assert all(output.count(": right") == 3 for output in outputs)
