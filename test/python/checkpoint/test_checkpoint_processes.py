"""Four real processes, each of which has a part of the state: each writes and reads that, and every element once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoint_models import cluster, gated, planned, train
from checkpoint_worker import values

from rhino.checkpoint import restore

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

COUNT = 4


def test_each_process_saves_and_restores_its_own_part(tmp_path: Path) -> None:
    wanted = values()
    plain = {name: value if name in ("numpy", "number") else jnp.asarray(value) for name, value in wanted.items()}
    plain["key"] = jax.random.wrap_key_data(plain["key"])
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "plain", plain)
    printed = processes.run(
        Path(__file__).with_name("checkpoint_worker.py"), COUNT, [str(tmp_path)], timeout=180, forked=True
    )
    lines = [[line for line in text.splitlines() if line.startswith(("{", "process"))] for text in printed]
    elements = [json.loads(of_one[0])["elements"] for of_one in lines]
    total = sum(np.size(value) for name, value in wanted.items() if name not in ("numpy", "number"))
    assert sum(elements) == total
    assert all(0 < one < total // 2 for one in elements), elements
    for of_one in lines:
        assert of_one[1].startswith("process is i32[16] in the checkpoint, and i32[8] in the state; restore into")
    # And one process, with other devices, without Rhino.
    for name in ("ours", "manager/1/default"):
        with ocp.StandardCheckpointer() as checkpointer:
            found = checkpointer.restore(tmp_path / name)
        assert jax.tree.structure(found) == jax.tree.structure(plain)
        found["key"] = jax.random.key_data(found["key"])
        for leaf, value in wanted.items():
            assert np.asarray(found[leaf]).tobytes() == np.asarray(value).tobytes(), leaf


def losses_of(folder: Path, other: str, stages: int) -> list[list[float]]:
    """What a job of four processes printed after it saved to a folder: the losses of each two steps."""
    worker = Path(__file__).with_name("checkpoint_job_worker.py")
    printed = processes.run(worker, COUNT, [str(folder), other, str(stages)], timeout=240)
    found = [[[float(x) for x in line.split()[1:]] for line in text.splitlines() if line.startswith("losses")]
             for text in printed]  # fmt: skip
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.long
def test_a_job_of_several_processes_trains_on_under_any_plan(tmp_path: Path) -> None:
    alone = planned(gated(), cluster(tmp_path, 8), stages=1, mesh=(2, 4))
    losses, again = losses_of(tmp_path / "staged", "-", 4)
    assert again == losses
    losses_2, again_2, crossed = losses_of(tmp_path / "mesh", str(tmp_path / "staged"), 1)
    assert again_2 == losses_2
    np.testing.assert_allclose(crossed, losses, rtol=1e-4)
    for name in ("staged", "mesh"):
        _, ours = train(alone, restore(tmp_path / name, alone), gated()[2], 2)
        np.testing.assert_allclose(ours, losses, rtol=1e-4)
