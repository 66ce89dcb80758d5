"""Four real processes, each of which has a part of the state: each writes and reads that, and every element once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from checkpoint_worker import values

sys.path.insert(0, str(Path(__file__).parents[1]))
import processes

COUNT = 4


def test_each_process_saves_and_restores_its_own_part(tmp_path: Path) -> None:
    wanted = values()
    plain = {name: value if name in ("numpy", "number") else jnp.asarray(value) for name, value in wanted.items()}
    plain["key"] = jax.random.wrap_key_data(plain["key"])
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "plain", plain)
    printed = processes.run(Path(__file__).with_name("checkpoint_worker.py"), COUNT, [str(tmp_path)], timeout=180)
    lines = [[line for line in text.splitlines() if line.startswith(("{", "process"))] for text in printed]
    elements = [json.loads(of_one[0])["elements"] for of_one in lines]
    total = sum(np.size(value) for name, value in wanted.items() if name not in ("numpy", "number"))
    assert sum(elements) == total
    assert all(0 < one < total // 2 for one in elements), elements
    for of_one in lines:
        assert of_one[1].startswith("process is int32[16] in the checkpoint, and int32[8] in the state; restore into")
    # And one process, with other devices, without Rhino.
    for name in ("ours", "manager/1/default"):
        with ocp.StandardCheckpointer() as checkpointer:
            found = checkpointer.restore(tmp_path / name)
        assert jax.tree.structure(found) == jax.tree.structure(plain)
        found["key"] = jax.random.key_data(found["key"])
        for leaf, value in wanted.items():
            assert np.asarray(found[leaf]).tobytes() == np.asarray(value).tobytes(), leaf
