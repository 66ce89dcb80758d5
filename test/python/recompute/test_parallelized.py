"""Steps that fit because they compute again: the plan says so, XLA does it, and results are those of one device."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import microbatch_steps as steps
import numpy as np
import pytest

import rhino


@pytest.mark.parametrize(
    ("scan", "changes", "limit", "tolerance"),
    [
        (True, {"dtype": "bfloat16", "seq_len": 128}, 1_500_000, 2**-6),
        pytest.param(True, {"seq_len": 128}, 2_500_000, 1e-4, marks=pytest.mark.long),
        pytest.param(False, {"layers": 3, "seq_len": 256}, 7_000_000, 1e-4, marks=pytest.mark.long),
    ],
)
def test_a_step_that_computes_again_is_that_of_one_device(
    scan: bool, changes: dict[str, Any], limit: int, tolerance: float
) -> None:
    step, state, batch = steps.tiny("gpt", 8, scan=scan, **{"layers": 4, **changes})
    want = jax.jit(step)(state, batch)
    planned = rhino.parallelize(step, memory_limit=limit, stages=1, mesh=(8,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not scan:
            # XLA: barriers-hold, but on CPUs with jaxlib 0.10.
            warnings.filterwarnings("ignore", "XLA does not do .* of the products", rhino.RhinoWarning)
        got = planned(state, batch)
        plan = planned.plan(state, batch)
    assert plan.recomputation is not None
    assert plan.recomputation.flops > 0 or plan.recomputation.loops
    assert f"computed again  {plan.recomputation.name}" in plan.summary()
    flat = [[np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (got, want)]
    steps.agree(flat[0], flat[1], tolerance, tolerance)
    kept = rhino.parallelize(step, memory_limit=limit, stages=1, mesh=(8,), remat="keep")
    try:
        assert kept.plan(state, batch).recomputation is None
    except rhino.RhinoError as error:
        assert "cannot be met" in str(error)
