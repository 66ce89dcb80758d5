"""Deviceless GPU targets: any device count, what only the GPU compiler does, and what happens without its wheels."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from annotated_modules import BYTES, F32, MLP, constraint, dot, has, loop, module, on_op
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rhino.compile import _jax, collective_bytes, compile_lowered, compile_module, executable, target_devices
from rhino.compile.target import DEVICELESS, gpu_target_config
from rhino.errors import RhinoError

THREE = (F32, F32, F32)


@pytest.fixture(autouse=True)
def _needs_gpu_compiler(gpu_compiler: None) -> None:
    """Every test here compiles for GPUs."""


@pytest.mark.parametrize("target", DEVICELESS)
def test_every_target_compiles(target: str) -> None:
    compiled = compile_module(MLP, target)
    assert (compiled.target, compiled.devices) == (target, 8)
    assert collective_bytes(compiled.collectives()) == {"all-reduce": 2 * 8 * 32 * 4 * 3 // 4}
    assert compiled.memory_analysis().argument_bytes == 8 * 32 * 4 + 32 * 16 * 4 + 16 * 32 * 4
    assert compiled.memory_analysis().alias_bytes == 32 * 16 * 4
    with pytest.raises(RhinoError, match=f"compiled for {target} without a device and cannot run"):
        compiled()


@pytest.mark.parametrize(("mesh", "devices"), [('"x"=16, "y"=8', 128), ('"x"=3, "y"=2', 6)])
def test_any_device_count(mesh: str, devices: int) -> None:
    n = devices
    size = 48 * n
    type_ = f"tensor<{size}x64xf32>"
    body = dot("0", "a", "a", (type_, type_, F32), "[0] x [0]", on_op("", "")) + f"return %0 : {F32}"
    compiled = compile_module(module([("a", type_, has("x,y", ""))], [(F32, has("", ""))], body, mesh), "h100")
    assert compiled.devices == devices
    rows = compiled.collectives()
    assert [(r.kind, r.count, r.bytes, r.group_size) for r in rows] == [("all-reduce", 1, 2 * BYTES * (n - 1) // n, n)]
    assert compiled.memory_analysis().argument_bytes == 48 * 64 * 4


def test_a_sharded_gradient_is_reduce_scattered() -> None:
    body = dot("0", "a", "b", THREE, "[0] x [0]", on_op("x,y", "")) + f"return %0 : {F32}"
    text = module([("a", F32, has("x,y", "")), ("b", F32, has("x,y", ""))], [(F32, has("x,y", ""))], body)
    rows = compile_module(text, "h100").collectives()
    assert [(r.kind, r.count, r.bytes, r.group_size) for r in rows] == [("reduce-scatter", 1, BYTES * 7 // 8, 8)]


def test_gathers_run_in_the_narrow_type() -> None:
    half = F32.replace("f32", "bf16")
    body = (
        f"%c = stablehlo.convert %w {on_op('y', '')} : ({F32}) -> {half}\n    "
        + constraint("g", "c", half, "", "")
        + dot("0", "a", "g", (half,) * 3, attrs=on_op("x", ""))
        + f"return %0 : {half}"
    )
    rows = compile_module(
        module([("w", F32, has("y", "")), ("a", half, has("x", ""))], [(half, has("x", ""))], body), "h100"
    ).collectives()
    assert [(r.kind, r.dtype, r.bytes) for r in rows] == [("all-gather", "bf16", BYTES // 2 * 3 // 4)]


def test_weights_gathered_in_a_loop_count_once_per_trip() -> None:
    stack = "tensor<5x64x64xf32>"
    step = (
        "%z = stablehlo.constant dense<0> : tensor<i32>\n"
        f"%s = stablehlo.dynamic_slice %w, %i, %z, %z, sizes = [1, 64, 64] {on_op('', 'y', '')} : "
        f"({stack}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>\n"
        f"%r = stablehlo.reshape %s {on_op('y', '')} : (tensor<1x64x64xf32>) -> {F32}\n"
        + constraint("g", "r", F32, "", "")
        + dot("next", "h", "g", THREE, attrs=on_op("x", ""))
    )
    attrs = 'attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>]>}'
    body = loop(5, ("h", "a", F32), step, attrs) + f"return %out#1 : {F32}"
    text = module([("w", stack, has("", "y", "")), ("a", F32, has("x", ""))], [(F32, has("x", ""))], body)
    rows = compile_module(text, "h100").collectives()
    assert [(r.kind, r.count, r.bytes) for r in rows] == [("all-gather", 5, 5 * BYTES * 3 // 4)]


def test_hosts_hold_equal_runs_of_devices() -> None:
    devices = target_devices("h100", 16)
    assert [d.process_index for d in devices] == [0] * 8 + [1] * 8
    assert [d.process_index for d in target_devices("a100", 8, hosts=4)] == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(RhinoError, match="8 devices cannot be split evenly over 3 hosts"):
        target_devices("h100", 8, hosts=3)


def test_a_jitted_function_compiles_for_gpus_that_are_not_here() -> None:
    mesh = Mesh(target_devices("h100", 4), ("x",))
    over = NamedSharding(mesh, P("x"))
    jitted = jax.jit(lambda a: jnp.sum(a * a), in_shardings=over, out_shardings=NamedSharding(mesh, P()))
    lowered = jitted.lower(jax.ShapeDtypeStruct((64,), jnp.float32))
    compiled = compile_lowered(lowered, lowered.as_text(), target="h100")
    assert collective_bytes(compiled.collectives()) == {"all-reduce": 2 * 4 * 3 // 4}


def test_options_reach_xla() -> None:
    with pytest.raises(RhinoError, match=r"XLA cannot compile the module for h100: .*no_such_option"):
        compile_module(MLP, "h100", options={"no_such_option": True})


def test_a_process_that_started_without_platforms_can_still_compile_for_gpus() -> None:
    # jax then tries the CUDA plugin, fails for want of a driver, and forgets it.
    program = (
        "import os; os.environ.pop('JAX_PLATFORMS', None)\n"
        "import jax; jax.devices()\n"
        "from rhino.compile import target_devices\n"
        "print(len(target_devices('h100', 8)), 'JAX_SKIP_CUDA_CONSTRAINTS_CHECK' in os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "8 False\n", done.stderr


def test_missing_ptxas_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("UNAVAILABLE: No PTX compilation provider is available. Neither ptxas")

    lowered = jax.jit(lambda a: a).lower(1.0)
    monkeypatch.setattr(type(lowered), "compile", refuse)
    with pytest.raises(RhinoError, match=r"needs NVIDIA's ptxas and libdevice: .*; pip install 'rhino-jax\[gpu-aot\]'"):
        executable.compile_lowered(lowered, lowered.as_text(), target="h100")


def test_missing_and_unequal_wheels_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jax.metadata, "version", lambda _: "0.4.1")
    with pytest.raises(
        RhinoError, match=r"jax-cuda13-plugin 0.4.1 does not match jax .*; pip install 'jax-cuda13-plugin=="
    ):
        compile_module(MLP, "h100")
    monkeypatch.setattr(_jax, "_installed", lambda _: False)
    with pytest.raises(RhinoError, match=r"GPU compiler is not installed; pip install 'rhino-jax\[gpu-aot\]'"):
        compile_module(MLP, "h100")


@pytest.mark.parametrize("target", DEVICELESS)
def test_target_descriptions_name_their_source(target: str) -> None:
    text = gpu_target_config(target)
    assert "# Source: " in text
    assert f"{target.upper()}" in text.splitlines()[0]
