"""Pipelines whose groups are on several processes: the values of the step, on every way of spreading them."""

from __future__ import annotations

from pathlib import Path

import processes

WORKER = Path(__file__).parent / "pipeline_worker.py"


def test_two_processes_run_what_one_does() -> None:
    outputs = processes.run(WORKER, 2, devices=2)
    assert all(output.count(": right") == 6 for output in outputs)


def test_too_few_threads_are_refused_and_not_waited_for() -> None:
    ended = processes.wait(processes.start(WORKER, 2, devices=2, env={"NPROC": "2"}, forked=True), 120)
    for number, one in enumerate(ended):
        assert one.code != 0
        assert (
            f"process {number} needs 4 threads of XLA's CPU client for its devices and transfers, and has 2"
            in one.output
        )
