"""Clusters that are not this process: planned anywhere, compiled without devices, never run; and every refusal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from small_mlp import abstract_state, init, make_batch, train_step

import rhino


def test_remote_plan_has_partition_specs_and_cannot_run() -> None:
    step = rhino.parallelize(train_step, cluster="dgx-h100:2", donate_argnums=0)
    plan = step.plan(abstract_state(), make_batch(64))
    assert plan.cluster == "dgx-h100:2" and plan.devices == 16
    specs = jax.tree.leaves(plan.in_shardings, is_leaf=lambda s: isinstance(s, PartitionSpec))
    assert specs and all(isinstance(spec, PartitionSpec) for spec in specs)
    with pytest.raises(rhino.RhinoError, match="planned for cluster dgx-h100:2, whose h100 devices are not here"):
        step(init(jax.random.key(0)), make_batch(64))
    with pytest.raises(rhino.RhinoError, match="dgx-h100:2 is not here"):
        step.init(init, jax.random.key(0))


@pytest.mark.usefixtures("gpu_compiler")
def test_remote_compile_needs_no_device() -> None:
    step = rhino.parallelize(train_step, cluster="dgx-h100:1", donate_argnums=0)
    exe = step.compile(abstract_state(), make_batch(64))
    assert (exe.target, exe.devices) == ("h100", 8)
    assert exe.memory_analysis().peak_bytes > 0
    with pytest.raises(rhino.RhinoError, match="h100"):
        exe(abstract_state(), make_batch(64))


def test_more_cpu_devices_than_jax_has() -> None:
    big = rhino.parallelize(lambda x: x + 1, cluster="cpu:16")
    x = np.ones((1024, 8), np.float32)
    count = big.cluster.num_devices
    assert count > 8 and big.plan(x).devices == count
    remedy = f"set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
    for use in (big, big.compile):
        with pytest.raises(rhino.RhinoError, match=f"has {count} devices, and jax has 8 here; {remedy}"):
            use(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "O9"}, "level 'O9' is not available; O0, O1, O2 are"),
        ({"memory_limit": "lots"}, "memory limit 'lots' is not a positive number of bytes"),
        ({"memory_limit": -1}, "memory limit -1 is not a positive number of bytes"),
        ({"mesh": (2, 0)}, r"mesh \(2, 0\) is not a list of positive sizes"),
        ({"cluster": "nowhere:2"}, "no such preset or file"),
        ({"static_argnums": 3}, "static_argnums has 3, but the function takes 1 positional"),
        ({"static_argnums": 0, "donate_argnums": 0}, "argument 0 is both static and donated"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rhino.RhinoError, match=message):
        rhino.parallelize(lambda x: x, **options)


def test_memory_limit_that_cannot_be_met() -> None:
    step = rhino.parallelize(lambda w, x: x @ w, memory_limit="1KiB")
    with pytest.raises(
        rhino.RhinoError, match=r"test_clusters\.py:68:1: memory limit .* cannot be met on local:1.*\bw\b"
    ):
        step.plan(jnp.ones((512, 512)), jnp.ones((8, 512)))


def test_mesh_of_another_size() -> None:
    with pytest.raises(rhino.RhinoError, match="mesh 2x2 has 4 devices but cluster local:1 has 8"):
        rhino.parallelize(lambda x: x + 1, mesh=(2, 2)).plan(jnp.ones((8, 8)))
