"""bench.pipeline_multihost: its models as stages are the models; what it simulates; and it runs, where it may."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import _stage_models, pipeline_multihost
from bench._namespaces import available
from bench._stage_programs import build
from rhino.pipeline.schedule import PipelineCosts, make_schedule, simulate
from rhino.runtime import build_program

ROOT = Path(__file__).resolve().parents[3]
MISSING = available()


@pytest.mark.parametrize(
    ("name", "sizes", "edges"),
    [
        pytest.param(
            "make_gpt",
            {"rows": 2, "width": 16, "length": 8},
            {(0, 1), (1, 2), (2, 3)},
            marks=pytest.mark.long,
        ),
        # Skips pass over stages, and all stages read what the first makes of time and label.
        pytest.param(
            "make_unet",
            {"rows": 1, "width": 32, "image": 8},
            {(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)},
            marks=pytest.mark.long,
        ),
    ],
)
def test_stages_train_as_the_whole_model(name: str, sizes: dict[str, int], edges: set[tuple[int, int]]) -> None:
    import jax

    model = getattr(_stage_models, name)(2, **sizes)
    program, modules = build(model, 2)
    assert {(t.from_stage, t.to_stage) for t in program.transfers if t.of == "forward"} == edges
    assert {(t.to_stage, t.from_stage) for t in program.transfers if t.of == "backward"} == edges
    assert any(("x",) in program.values[a.value].sharding for a in program.arguments), "no parameter is split"
    costs = PipelineCosts.uniform(4, 1.0, 3.0)
    executable = build_program(program, make_schedule("1f1b", costs, 2), modules)
    given = model.arguments()
    made = executable.run(executable.place(given))
    whole = jax.jit(model.whole_step())(*given)
    for one, other in zip(made, whole, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=2e-6)


def test_transfers_share_the_ways_in_and_out_of_hosts() -> None:
    stages = [{"forward": 0.0, "backward": 0.0}] * 3
    # Both leave stage 0, half as fast as alone; the gradients come back into it.
    costs = pipeline_multihost._costs(stages, {(0, 1): 1.0, (0, 2): 1.0, (2, 0): 2.0})
    assert [(e.src, e.dst, e.forward_s, e.backward_s) for e in costs.edges] == [(0, 1, 1.0, None), (0, 2, 1.0, 2.0)]
    assert simulate(make_schedule("gpipe", costs, 1), costs).step_time_s == pytest.approx(4.0)


def test_targets() -> None:
    def row(seconds: float, simulated: float) -> dict[str, Any]:
        return {
            "seconds": {"median": seconds},
            "simulated_s": simulated,
            "measured_over_simulated": seconds / simulated,
        }

    best, base = pipeline_multihost._BEST, pipeline_multihost.BASE
    assert set(pipeline_multihost.targets({best: row(1.0, 1.05), base: row(2.0, 1.9)}).values()) == {True}
    assert set(pipeline_multihost.targets({best: row(2.1, 1.1), base: row(2.0, 1.8)}).values()) == {False}
    # Both steps are within 15 %, on either side; what one is faster than the other by is not.
    found = pipeline_multihost.targets({best: row(1.0, 1.1), base: row(2.0, 1.8)})
    assert list(found.values()) == [True, True, False]


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
@pytest.mark.long
def test_it_runs() -> None:
    argv = [sys.executable, "-m", "bench.pipeline_multihost", "--quick", "--only", "gpt", "--json", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(done.stdout)["results"]["models"]
    assert len(model["ways"]) == 6
    ways = [(moved["from"], moved["to"]) for moved in model["transfers"]]
    assert ways == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    assert all({"forward", "backward"} == set(stage) for stage in model["fragments_s"])
