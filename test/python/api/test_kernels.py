"""Kernels in steps given to `rhino.parallelize`: planned, split, run like on one device; refused with their place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

import rhino
from rhino.api.plan import Plan
from rhino.cli.main import main

from . import kernel_steps as steps
from .kernel_steps import arrays, registered

MLP = {"up": (64, 128), "down": (128, 64)}
ATTENTION = dict.fromkeys("qkvo", (64, 64))


def trained(step: Callable[..., Any], params: Any, *batch: jax.Array, times: int = 3) -> tuple[Any, list[float]]:
    losses = []
    for _ in range(times):
        params, loss = step(params, *batch)
        losses.append(float(loss))
    return jax.tree.map(np.asarray, params), losses


def assert_trains_alike(step: Callable[..., Any], plain: Callable[..., Any], params: Any, *batch: jax.Array) -> None:
    ours, losses = trained(step, params, *batch)
    theirs, wanted = trained(plain, params, *batch)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)


def kernels(plan: Plan) -> dict[str, Any]:
    return {use.name: use for use in plan.kernels}


@pytest.mark.parametrize("pipeline", [{}, {"stages": 2, "microbatches": 2}], ids=["one program", "2 stages"])
def test_a_registered_pallas_kernel_trains_as_on_one_device(pipeline: dict[str, Any]) -> None:
    params, batch = arrays(0, **MLP), arrays(1, x=(128, 64), y=(128, 64))
    rule = {"reduction_factors": ("k",), "flops": lambda x, y: 2 * math.prod(x.shape) * y.shape[1]}
    with registered(steps.product_kernel, "m k, k n -> m n", **rule):
        step = rhino.parallelize(steps.mlp_step, **pipeline)
        assert_trains_alike(step, steps.mlp_step, params, batch["x"], batch["y"])
        plan = step.plan(params, batch["x"], batch["y"])
    uses = [u for u in plan.kernels if u.name == "product_kernel"]
    assert uses[0].flops and not uses[0].replicated


def test_a_registered_kernel_is_planned_as_the_product_that_it_is() -> None:
    """The same layouts and bytes as `x @ y` has, and about its time."""
    rows, width = 65536, 2048

    @jax.custom_vjp
    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return x @ y

    product.defvjp(lambda x, y: (x @ y, (x, y)), lambda r, g: (g @ r[1].T, r[0].T @ g))

    def plain(params: Any, x: jax.Array, y: jax.Array) -> Any:
        return steps.descend(lambda p: jnp.mean((product(jnp.tanh(product(x, p["up"])), p["down"]) - y) ** 2), params)

    def f32(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    inputs = {"up": f32(1024, width), "down": f32(width, 1024)}, f32(rows, 1024), f32(rows, 1024)
    rule = {"reduction_factors": ("k",), "flops": lambda x, y: 2 * math.prod(x.shape) * y.shape[1]}
    with registered(steps.product_kernel, "m k, k n -> m n", **rule):
        ours = rhino.parallelize(steps.mlp_step, cluster="dgx-h100:1", donate_argnums=(0,)).plan(*inputs)
    theirs = rhino.parallelize(plain, cluster="dgx-h100:1", donate_argnums=(0,)).plan(*inputs)
    assert [t.sharding for t in ours.arguments] == [t.sharding for t in theirs.arguments]
    assert ours.predicted.comm_bytes == theirs.predicted.comm_bytes
    # The kernel is not known to be a product, whose time goes by its shape, and which reaches less than the peak.
    assert 1 < theirs.predicted.step_time_s / ours.predicted.step_time_s < 1.5


def test_without_a_rule_a_sum_over_blocks_stays_whole_and_the_rest_is_split() -> None:
    params, batch = arrays(0, **MLP), arrays(1, x=(128, 64), y=(128, 64))
    step = rhino.parallelize(steps.mlp_step)
    assert_trains_alike(step, steps.mlp_step, params, batch["x"], batch["y"])
    assert any(any(use.dims) for use in step.plan(params, batch["x"], batch["y"]).kernels)


@pytest.mark.parametrize(
    "pipeline",
    [{}, pytest.param({"stages": 2, "microbatches": 2}, marks=pytest.mark.long)],
    ids=["one program", "2 stages"],
)
def test_jaxs_flash_attention_needs_no_description(pipeline: dict[str, Any]) -> None:
    params, batch = arrays(0, **ATTENTION), arrays(1, x=(8, 32, 64), y=(8, 32, 64))
    step = rhino.parallelize(steps.attention_step, **pipeline)
    assert_trains_alike(step, steps.attention_step, params, batch["x"], batch["y"])
    found = kernels(step.plan(params, batch["x"], batch["y"]))
    assert {"mha_forward", "mha_backward"} <= set(found)
    if not pipeline:
        # The batch or the heads, never the positions, which the causal mask counts.
        assert any(found["mha_forward"].dims) and not found["mha_forward"].dims[1]
        assert not [c for c in step.compile(params, batch["x"], batch["y"]).collectives() if c.kind == "all-gather"]


def _spectrum(partition: Callable[..., Any], rule: str = "... i -> ... i") -> Callable[..., Any]:
    @custom_partitioning
    def spectrum(x: jax.Array) -> jax.Array:
        return jnp.abs(jnp.fft.fft(x)).astype(x.dtype)

    spectrum.def_partition(
        partition, infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding, sharding_rule=rule
    )
    return spectrum


def _whole_rows(mesh: Any, args: Any, result: Any) -> Any:
    if args[0].sharding.spec[-1] is not None:
        raise ValueError("rows have to be whole")
    return mesh, lambda x: jnp.abs(jnp.fft.fft(x)).astype(x.dtype), result.sharding, (args[0].sharding,)


def _otherwise(mesh: Any, args: Any, result: Any) -> Any:
    """As jax's own example: it takes the operand in a layout that it can work with, whatever is asked for."""
    spec = (*args[0].sharding.spec[:-1], None)
    kept = NamedSharding(args[0].sharding.mesh, PartitionSpec(*spec))
    return mesh, lambda x: jnp.abs(jnp.fft.fft(x)).astype(x.dtype), kept, (kept,)


@pytest.mark.parametrize("partition", [_whole_rows, _otherwise])
def test_what_a_partitioner_refuses_is_not_offered(partition: Callable[..., Any]) -> None:
    spectrum = _spectrum(partition)

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return spectrum(x @ w)

    w, x = arrays(0, w=(32, 16))["w"], arrays(1, x=(8, 4, 32))["x"]
    parallel = rhino.parallelize(step)
    np.testing.assert_allclose(parallel(w, x), step(w, x), atol=1e-5)
    (use,) = parallel.plan(w, x).kernels
    assert use.name == "spectrum" and any(use.dims[:2]) and not use.dims[2]
    assert not parallel.compile(w, x).collectives()
    # Told to split the last dimension all the same, by a user's constraint on the result, the kernel gets whole rows.
    assert "sdy.manual_computation" in str(parallel.plan(w, x).module)


def test_a_partitioner_that_fails_whatever_it_is_asked_computes_whole() -> None:
    def broken(mesh: Any, args: Any, result: Any) -> Any:
        raise RuntimeError("no devices like these")

    spectrum = _spectrum(broken)
    x = arrays(1, x=(8, 16))["x"]
    parallel = rhino.parallelize(lambda x: spectrum(2 * x))
    np.testing.assert_allclose(parallel(x), spectrum(2 * x), atol=1e-5)
    (use,) = parallel.plan(x).kernels
    assert not any(use.dims)


def test_a_registered_ffi_call_is_split(tmp_path: Path) -> None:
    """A foreign function, here LAPACK's: one line says that matrices of a batch do not need each other."""

    def step(x: jax.Array) -> jax.Array:
        a = jnp.einsum("bij,bkj->bik", x, x) + jnp.eye(8)
        call = jax.ffi.ffi_call(
            "lapack_spotrf_ffi",
            (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct(a.shape[:1], jnp.int32)),
            input_layouts=[(0, 2, 1)], output_layouts=[(0, 2, 1), (0,)], input_output_aliases={0: 0},
            vmap_method="broadcast_all",
        )  # fmt: skip
        return jnp.tril(call(a, uplo=np.uint8(ord("L")))[0])

    jnp.linalg.cholesky(jnp.eye(2))  # jax looks LAPACK up when it first needs it
    x = arrays(0, x=(16, 8, 8))["x"]
    with registered("lapack_spotrf_ffi", "b i j -> b i j, b", need_replication_factors=("i", "j"), rate="vector"):
        parallel = rhino.parallelize(step)
        np.testing.assert_allclose(parallel(x), step(x), atol=1e-5)
        (use,) = parallel.plan(x).kernels
    assert use.name == "lapack_spotrf_ffi" and use.dims[0]
    assert not parallel.compile(x).collectives()
    # The plan says what each device computes: it needs no registration any more.
    parallel.plan(x).save(tmp_path / "plan.json")
    again = rhino.parallelize(step, plan=Plan.load(tmp_path / "plan.json"))
    with registered("lapack_spotrf_ffi", "b i j -> b i j, b", need_replication_factors=("i", "j"), rate="vector"):
        np.testing.assert_allclose(again(x), step(x), atol=1e-5)


def test_a_call_nobody_knows_is_computed_whole_and_named() -> None:
    def step(x: jax.Array) -> jax.Array:
        return jax.ffi.ffi_call("mine", jax.ShapeDtypeStruct(x.shape, x.dtype))(2 * x)

    plan = rhino.parallelize(step, cluster="dgx-h100:1").plan(jax.ShapeDtypeStruct((64, 64), jnp.float32))
    (use,) = plan.kernels
    assert "nobody said how it can be split" in use.replicated
    text = " ".join(plan.summary().split())
    assert re.search(r"mine at \S*test_kernels.py:\d+:\d+ is computed whole by every device: nobody said", text)
    assert "rhino.kernels.register('mine', rule=..)" in text
    assert "computed whole by every device" in plan.report_html()
    assert Plan.from_module(str(plan.module)).kernels == plan.kernels


def test_a_plan_with_kernels_is_the_same_in_a_file(tmp_path: Path) -> None:
    params, batch = arrays(0, **ATTENTION), arrays(1, x=(8, 32, 64), y=(8, 32, 64))
    plan = rhino.parallelize(steps.attention_step).plan(params, batch["x"], batch["y"])
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.kernels == plan.kernels
    # What devices compute is in the module: another process compiles it without the step.
    module = tmp_path / "planned.mlir"
    module.write_text(str(loaded.module))
    assert "@rhino.kernel" not in module.read_text()
    assert main(["compile", str(module), "--target", "cpu", "--json", str(tmp_path / "out.json")]) == 0
    # Another learning rate is another program over the same arguments: its kernels are found again.
    again = rhino.parallelize(steps.attention_step, plan=loaded)
    assert_trains_alike(again, steps.attention_step, params, batch["x"], batch["y"])


def test_the_same_step_gives_the_same_plan() -> None:
    params, batch = arrays(0, **ATTENTION), arrays(1, x=(8, 32, 64), y=(8, 32, 64))
    texts = [str(rhino.parallelize(steps.attention_step).plan(params, batch["x"], batch["y"]).module) for _ in range(2)]
    assert texts[0] == texts[1]


def _attend(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    def loss(p: Any) -> jax.Array:
        b, s, d = x.shape
        q, k, v = ((x @ p[name]).reshape(b, s, -1, 64) for name in ("q", "k", "v"))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        return jnp.mean((mixed.reshape(b, s, d) @ p["o"]).astype(jnp.float32) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: (p - g).astype(p.dtype), params, grads), value


def _bf16(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def test_cudnn_attention_is_traced_planned_and_compiled_without_a_gpu() -> None:
    params = {"q": _bf16(512, 512), "k": _bf16(512, 256), "v": _bf16(512, 256), "o": _bf16(512, 512)}
    step = rhino.parallelize(_attend, cluster="dgx-h100:1", donate_argnums=(0,))
    plan = step.plan(params, _bf16(128, 1024, 512))
    found = kernels(plan)
    assert set(found) == {"cudnn-attention", "cudnn-attention-backward"}
    assert found["cudnn-attention-backward"].flops * 2 == found["cudnn-attention"].flops * 5
    compiled = step.compile(params, _bf16(128, 1024, 512))
    calls = re.findall(
        r"= \(bf16\[([\d,]+)\]\S* .*custom_call_target=\"__cudnn\$fmhaSoftmax(?:Backward)?\"", compiled.hlo_text()
    )
    # Sixteen of the examples, or one of eight heads and more examples: an eighth of the whole.
    assert len(calls) == 2 and all(math.prod(map(int, c.split(","))) * 8 == 128 * 8 * 1024 * 64 for c in calls)
    sent = {c.kind: c.bytes for c in compiled.collectives()}
    activations = 128 * 1024 * 512 * 2
    assert all(nbytes < activations / 2 for nbytes in sent.values()), sent


def test_of_a_pipeline_the_kernels_are_those_of_one_stage() -> None:
    def step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        def loss(p: Any) -> jax.Array:
            y = x
            for w in p:
                b, s, d = y.shape
                q = (y @ w).reshape(b, s, -1, 64)
                y = y + jax.nn.dot_product_attention(q, q, q, is_causal=True, implementation="cudnn").reshape(b, s, d)
            return jnp.mean(y.astype(jnp.float32) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: (p - g).astype(p.dtype), params, grads), value

    inputs = (_bf16(512, 512),) * 4, _bf16(16, 1024, 512)
    plan = rhino.parallelize(step, cluster="dgx-h100:1", stages=2, microbatches=4).plan(*inputs)
    (use,) = [use for use in plan.kernels if use.name == "cudnn-attention"]
    # Two of four layers, four micro-batches, on half of the devices.
    assert use.count == 2 * 4
    causal = 4 * 16 * 1024 * 1024 * 512 // 2
    assert use.flops == 2 * causal // 4


def test_an_older_gpu_refuses_what_cudnn_cannot_do_there() -> None:
    """Heads of 256 need Hopper: jax says so while it traces, and Rhino for which device, and what to do."""

    def step(q: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, q, q, implementation="cudnn")

    q = _bf16(8, 64, 2, 256)
    assert rhino.parallelize(step, cluster="dgx-h100:1").plan(q).kernels
    with pytest.raises(NotImplementedError, match="head dim must be <= 128") as refused:
        rhino.parallelize(step, cluster="dgx-a100:1").plan(q)
    notes = " ".join(refused.value.__notes__)
    assert "while the step is traced for a100" in notes and "give that call another implementation" in notes
    with pytest.raises(RuntimeError, match="cuDNN") as refused_here:
        rhino.parallelize(step, cluster="local").plan(q)
    assert "is traced for cpu" in " ".join(refused_here.value.__notes__)
