"""Models with a fused attention kernel under plans: as good as with plain attention, from files too, and numerics."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

import rhino
from examples import export
from examples.models import attention, gpt
from rhino.api.plan import Plan
from rhino.cli.main import main

# Large enough that a device should have a part of it, small enough to compile in seconds.
SMALL = dataclasses.replace(
    gpt.PRESETS["tiny"], width=1024, heads=16, seq_len=1024, dtype="bfloat16", scan=True, remat=True, attention="cudnn"
)
PLAIN = dataclasses.replace(SMALL, attention="xla")
BATCH = 64
# Bytes of a device for the tiny models: less than they need undivided.
LIMITS = {"gpt": 1_800_000, "t5": 550_000}
# Compiling takes nearly all the time of these tests, and the speed of what it makes does not matter.
FAST_COMPILE = {"xla_backend_optimization_level": 0}


def model(name: str) -> ModuleType:
    return importlib.import_module(f"examples.models.{name}")


def traced(config: gpt.GPTConfig) -> tuple[Any, tuple[Any, ...]]:
    step = rhino.parallelize(gpt.make_train_step(config)[1], cluster="dgx-h100:1", donate_argnums=(0,))
    return step, gpt.abstract_inputs(config, BATCH)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Of the small GPT with the kernel, traced for H100s."""
    step, inputs = traced(SMALL)
    found: Plan = step.plan(*inputs)
    return found


def test_the_kernel_costs_no_collective_and_is_split(plan: Plan) -> None:
    step, inputs = traced(PLAIN)
    plain = step.plan(*inputs)
    assert set(plan.predicted.comm_bytes) <= set(plain.predicted.comm_bytes)
    assert sum(plan.predicted.comm_bytes.values()) <= 1.01 * sum(plain.predicted.comm_bytes.values())
    assert plan.predicted.step_time_s < plain.predicted.step_time_s
    assert {use.name for use in plan.kernels} == {"cudnn-attention", "cudnn-attention-backward"}
    for use in plan.kernels:
        assert use.dims[0] and not use.replicated and not use.sent_bytes


@pytest.mark.long
def test_xla_compiles_what_was_planned(plan: Plan) -> None:
    step, inputs = traced(SMALL)
    compiled = step.compile(*inputs)
    calls = re.findall(
        r"= \(bf16\[([\d,]+)\]\S* .*custom_call_target=\"__cudnn\$fmhaSoftmax(?:Backward)?\"", compiled.hlo_text()
    )
    whole = BATCH * SMALL.seq_len * SMALL.width
    # The forward pass once, though the model asks for it twice: there is memory for what it keeps.
    assert len(calls) == 2 and all(math.prod(map(int, c.split(","))) * 8 == whole for c in calls)
    sent: dict[str, int] = {}
    for collective in compiled.collectives():
        sent[collective.kind] = sent.get(collective.kind, 0) + collective.bytes
    assert sum(sent.values()) == pytest.approx(sum(plan.predicted.comm_bytes.values()), rel=0.05)
    assert compiled.memory_analysis().peak_bytes == pytest.approx(plan.predicted.peak_bytes, rel=0.15)


def test_files_of_one_device_are_planned_like_the_traced_step(plan: Plan, tmp_path: Path) -> None:
    module = export.lower(gpt.make_train_step(SMALL)[1], *gpt.abstract_inputs(SMALL, BATCH), platform="h100")
    found = []
    for suffix in (".mlir", ".mlirbc"):
        path, saved = tmp_path / f"step{suffix}", tmp_path / f"plan{suffix}.json"
        export.write(module, path)
        assert main(["plan", str(path), "--cluster", "dgx-h100:1", "--save", str(saved), "-q"]) == 0
        found.append(Plan.load(saved))
    text, bytecode = found
    # Places in the source differ: bytecode has those of the model, text those in the file.
    assert str(text.module).partition("sdy.mesh")[2] == str(bytecode.module).partition("sdy.mesh")[2]
    for one in found:
        assert [a.sharding for a in one.arguments] == [a.sharding for a in plan.arguments]
        assert one.predicted == plan.predicted
        assert [(u.name, u.dims, u.count) for u in one.kernels] == [(u.name, u.dims, u.count) for u in plan.kernels]


def test_a_file_that_only_its_process_can_plan_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.mlir"
    path.write_text("""func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.custom_call @CustomSPMDPartitioning(%x) {backend_config = "1"} : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }""")
    assert main(["plan", str(path), "--cluster", "dgx-h100:1"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"step.mlir:2:\d+: only the process that exported this file can partition this call", said)
    assert "export the step for one device" in said and "rhino.parallelize" in said


def losses(step: Callable[..., Any], state: Any, batch: Any, times: int = 2) -> list[float]:
    found = []
    for _ in range(times):
        state, metrics = step(state, batch)
        found.append(float(metrics["loss"]))
    return found


def compiled(function: Any, *args: Any) -> Any:
    return function.lower(*args).compile(compiler_options=FAST_COMPILE)


@pytest.mark.parametrize("name", ["gpt", pytest.param("t5", marks=pytest.mark.long)])
def test_a_plan_for_gpus_computes_the_same_on_cpus(name: str) -> None:
    """The layouts found for the kernel on 8 H100s, under XLA's form of the same function on 8 CPU devices."""
    module = model(name)
    there = dataclasses.replace(module.PRESETS["tiny"], layers=1, attention="cudnn", dtype="bfloat16")
    here = dataclasses.replace(there, dtype="float32")
    inputs = module.abstract_inputs(there, 16)
    # What is so small is not worth splitting, unless there is no room for it.
    step = rhino.parallelize(
        module.make_train_step(there)[1], cluster="dgx-h100:1", mesh=(2, 4), memory_limit=LIMITS[name]
    )
    plan = step.plan(*inputs)
    assert any(any(use.dims) for use in plan.kernels)
    names, sizes = zip(*plan.mesh, strict=True)
    mesh = Mesh(np.array(jax.devices("cpu")[:8]).reshape(sizes), names)
    init_fn, train_step = module.make_train_step(here)
    key = jax.random.key(0, impl="unsafe_rbg")
    state, batch = compiled(jax.jit(init_fn), key)(key), module.example_batch(here, 16)
    shardings = jax.tree.unflatten(
        jax.tree.structure((state, batch)), [NamedSharding(mesh, s) for s in jax.tree.leaves(plan.partition_specs)]
    )
    alone = jax.jit(module.make_train_step(dataclasses.replace(here, attention="xla"))[1])
    split = jax.jit(train_step, in_shardings=shardings, out_shardings=(shardings[0], None))
    placed = jax.device_put((state, batch), shardings)
    ours, theirs = compiled(split, *placed), compiled(alone, state, batch)
    np.testing.assert_allclose(losses(ours, *placed), losses(theirs, state, batch), rtol=1e-5)


def test_a_step_with_the_kernel_runs_on_this_machine() -> None:
    """Traced for CPUs, `attention.fused` is the plain form: planned and run like any step."""
    keys = jax.random.split(jax.random.key(0), 3)
    query, key, value = (jax.random.normal(k, (16, 32, 4, 16)) for k in keys)

    def step(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return attention.fused(query, key, value, is_causal=True)

    parallel = rhino.parallelize(step)
    wanted = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    np.testing.assert_allclose(parallel(query, key, value), wanted, atol=1e-5)
    assert not parallel.plan(query, key, value).kernels


def test_experts_by_ragged_products_are_split() -> None:
    """`top_k` routing and `ragged_dot` experts, as in steps for GPUs: no device does the work of all."""
    config = dataclasses.replace(
        model("moe").PRESETS["tiny"], width=256, group=512, seq_len=512, routing="ragged", attention="cudnn",
        dtype="bfloat16", scan=True,
    )  # fmt: skip
    # On one axis of 8 the choice of experts, which all devices need and is little, is made by each of them.
    step = rhino.parallelize(model("moe").make_train_step(config)[1], cluster="dgx-h100:1", mesh=(2, 4))
    plan = step.plan(*model("moe").abstract_inputs(config, 64))
    found = {use.name for use in plan.kernels}
    assert {"cudnn-attention", "cudnn-attention-backward", "ragged-dot", "top-k"} <= found
    assert all(any(use.dims) and not use.replicated for use in plan.kernels)
