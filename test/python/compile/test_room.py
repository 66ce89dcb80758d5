"""What is said of a program that needs more memory than the devices it was planned for have."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import rhino
from rhino.cli.main import main
from rhino.compile.room import shortage
from rhino.machine import Cluster
from rhino.plan.module import parse_module, plan_module
from rhino.request import PlanRequest

H100S = Cluster.load("dgx-h100:1")
GIB = 2**30


def test_it_names_what_is_needed_what_there_is_and_a_limit() -> None:
    said = str(shortage(100 * GIB, 50 * GIB, H100S))
    assert "XLA needs 100 GiB on each device" in said
    assert f"memory_limit={int(H100S.device.plan_bytes / 2)}" in said
    # Where as much was predicted, it was asked for.
    assert f"memory_limit={H100S.device.plan_bytes}" in str(shortage(100 * GIB, 120 * GIB, H100S))
    assert shortage(H100S.device.memory_bytes, 50 * GIB, H100S) is None
    assert shortage(100 * GIB, 50 * GIB, Cluster.load("cpu:1")) is None


def step(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)


def test_compiling_warns(gpu_compiler: None) -> None:
    small = replace(H100S, device=replace(H100S.device, memory_bytes=100_000))
    arguments = (jnp.zeros((256, 256)), jnp.zeros((1024, 256)))
    with pytest.warns(rhino.RhinoWarning, match="XLA needs .* on each device, which has 97.7 KiB"):
        rhino.parallelize(step, cluster=small, memory_limit=GIB).compile(*arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rhino.RhinoWarning)
        rhino.parallelize(step, cluster=H100S).compile(*arguments)


def test_the_command_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str], gpu_compiler: None) -> None:
    # 128 GiB of activations on each of 8 devices, allowed by hand.
    text = jax.jit(step).lower(
        jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((1 << 32, 64), "float32")
    )
    module = parse_module(text.as_text(), "step")
    planned = plan_module(module, PlanRequest.of(H100S, mesh=(8,), stages=1, microbatches=1, memory_limit=1 << 42))
    path = tmp_path / "planned.mlir"
    path.write_text(str(module))
    assert planned.plan.predicted.peak_bytes > H100S.device.memory_bytes
    assert main(["compile", str(path), "--target", "h100", "-q"]) == 0
    assert "warning: XLA needs" in capsys.readouterr().err
