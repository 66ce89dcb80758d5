"""Models with a fused attention kernel: the same function on CPUs, cuDNN's calls in what is exported for GPUs."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from examples import export
from examples.models import gpt

NAMES = ("gpt", "llama", "bert", "vit", "t5", "moe")
# Compiling takes nearly all the time of these tests, and the speed of what it makes does not matter.
FAST_COMPILE = {"xla_backend_optimization_level": 0}
FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
# Attention with a bias has targets of its own.
BIAS_FORWARD, BIAS_BACKWARD = "__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"


def model(name: str) -> ModuleType:
    return importlib.import_module(f"examples.models.{name}")


def exported(tmp_path: Path, name: str, *options: str) -> str:
    path = tmp_path / "step.mlir"
    export.main([name, "--attention", "cudnn", "--dtype", "bf16", "--platform", "h100", *options, "-o", str(path)])
    return path.read_text()


def targets(text: str) -> dict[str, int]:
    found = re.findall(r"custom_call @(__cudnn[$\w]*)", text)
    return {name: found.count(name) for name in sorted(set(found))}


# Vision and experts take the kernel as GPT does, Llama with fewer keys.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in ("vit", "moe", "llama", "bert", "t5"))) for n in NAMES]
)
def test_the_kernel_is_the_same_function_where_there_is_no_gpu(name: str) -> None:
    module = model(name)
    configs = [dataclasses.replace(module.PRESETS["tiny"], attention=kind, scan=True) for kind in ("xla", "cudnn")]
    init_fn, _ = module.make_train_step(configs[0])
    key = jax.random.key(0, impl="unsafe_rbg")
    state = jax.jit(init_fn).lower(key).compile(compiler_options=FAST_COMPILE)(key)
    batch = module.example_batch(configs[0], 4)
    if name == "bert":  # sequences of different lengths: padding is masked
        batch["valid"] = np.arange(configs[0].seq_len) < np.array([[32], [20], [7], [1]])
        batch["weights"] = batch["weights"] * batch["valid"]
    after = []
    for config in configs:
        step = jax.jit(module.make_train_step(config)[1])
        after.append(step.lower(state, batch).compile(compiler_options=FAST_COMPILE)(state, batch))
    (plain, metrics), (fused, fused_metrics) = after
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), fused_metrics, metrics)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), plain.params, state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), fused.params, plain.params)
    assert max(jax.tree.leaves(moved)) > 1e-3


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("gpt", {FORWARD: 2, BACKWARD: 2}),
        ("llama", {FORWARD: 2, BACKWARD: 2}),
        ("bert", {FORWARD: 2, BACKWARD: 2}),
        ("vit", {FORWARD: 2, BACKWARD: 2}),
        ("moe", {FORWARD: 2, BACKWARD: 2}),
        # Two layers on each side have relative positions, and two attend from one side to the other.
        ("t5", {FORWARD: 2, BACKWARD: 2, BIAS_FORWARD: 4, BIAS_BACKWARD: 4}),
    ],
)
def test_a_step_for_gpus_calls_the_kernel(name: str, calls: dict[str, int], tmp_path: Path) -> None:
    text = exported(tmp_path, name)
    assert targets(text) == calls
    masks = set(re.findall(r"mask_type\\22: \\22(\w+)", text))
    causal, padding = {"CAUSAL"}, {"PADDING"}
    wanted = {"gpt": causal, "llama": causal, "moe": causal, "bert": padding, "vit": padding, "t5": {"NO_MASK"}}
    assert masks == wanted[name]


def test_no_scores_are_kept(tmp_path: Path) -> None:
    text = exported(tmp_path, "gpt", "--seq", "96")
    assert not re.search(r"tensor<(\d+x)*96x96x", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt", "--attention", "cudnn"], "a kernel of GPUs: say which, such as --platform h100"),
        (["gpt", "--set", "attention=cudnn", "--platform", "cpu"], "a kernel of GPUs"),
        (["gpt", "--set", "attention=flash"], "it must be 'xla' or 'cudnn'"),
        (["gpt", "--set", "attention=cudnn", "--set", "dropout=0.1", "--platform", "h100"], "set dropout to 0"),
        (["mlp", "--attention", "cudnn"], "no option attention"),
        (["gpt", "--attention", "cudnn", "--platform", "h100"], "cannot be lowered for h100: Q must be fp16/bf16"),
    ],
)
def test_what_has_no_kernel_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        export.main([*arguments, "-o", str(tmp_path / "x.mlir")])


def test_calls_that_only_this_process_can_partition_are_counted() -> None:
    """JAX leaves a partitioner's call in what it lowers over several devices, and inlines it over one."""

    @custom_partitioning
    def double(x: jax.Array) -> jax.Array:
        return 2 * x

    double.def_partition(
        lambda mesh, args, result: (mesh, lambda x: 2 * x, result.sharding, (args[0].sharding,)),
        infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
        sharding_rule="i -> i",
    )

    def step(state: Any, x: jax.Array) -> Any:
        return state + double(x), x

    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    assert export.bound_calls(export.lower(step, x, x, platform="cpu")) == 0
    over = NamedSharding(jax.make_mesh((2,), ("x",), devices=jax.devices()[:2]), PartitionSpec("x"))
    split = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=over)
    assert export.bound_calls(export.lower(step, split, split, platform="cpu")) == 1


def test_a_trace_for_a_gpu_leaves_nothing_behind() -> None:
    """The same step object is traced for an H100 and then for this CPU."""
    config = dataclasses.replace(gpt.PRESETS["tiny"], attention="cudnn", dtype="bfloat16")
    step, inputs = gpt.make_train_step(config)[1], gpt.abstract_inputs(config, 2)
    here, there, again = (str(export.lower(step, *inputs, platform=p)) for p in ("cpu", "h100", "cpu"))
    assert targets(there) and not targets(here) and here == again
