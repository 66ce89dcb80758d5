"""The experts on real steps: what they lay out, why they decline, and that their plans are plans like any other."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import expert_programs as programs
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rhino
from rhino import RhinoError
from rhino.experts import NotApplicable, consult, names, propose
from rhino.machine import Cluster
from rhino.plan.module import parse_module
from rhino.program.data import Dims

A100 = Cluster.load("dgx-a100:2")
# Which experts have a plan of which model; the others must say why not.
APPLY = {
    "gpt": {"data", "zero1", "zero3", "megatron-data", "megatron-zero", "sequence", "embedding"},
    "moe": {"data", "zero1", "zero3", "megatron-data", "megatron-zero", "expert", "sequence", "embedding"},
    "convnet": {"data", "zero1", "zero3", "megatron-data", "megatron-zero", "channel"},
}


def layouts(name: str, model: str = "gpt", cluster: Cluster = A100) -> list[dict[str, Dims]]:
    """Axes per dimension of every argument, by name, for each plan of an expert."""
    facts = programs.model(model, batch=16).facts
    names_of = {leaf.value: leaf.name for leaf in facts.leaves}
    return [
        {names_of[v]: dims for v, dims in proposal.pins.items() if v in names_of}
        for proposal in propose(name, facts, cluster)
    ]


@pytest.mark.parametrize("model", sorted(APPLY))
@pytest.mark.parametrize("name", names())
def test_an_expert_has_a_plan_or_says_why_not(name: str, model: str) -> None:
    try:
        assert layouts(name, model)
    except NotApplicable as why:
        assert name not in APPLY[model]
        assert str(why)


def test_data_parallel_splits_the_batch_and_nothing_else() -> None:
    for layout in layouts("data"):
        for name, dims in layout.items():
            assert any(dims) == name.startswith("batch"), name


def test_zero3_splits_parameters_and_their_moments_alike() -> None:
    found = layouts("zero3")[0]
    kernel = "['h_0']['mlp']['up']['kernel']"
    assert found[f"state.params{kernel}"] == ((), ("data",))
    assert found[f"state.opt_state[1][0].mu{kernel}"] == ((), ("data",))


def test_zero1_keeps_parameters_whole_and_splits_moments() -> None:
    found = layouts("zero1")[0]
    kernel = "['h_0']['mlp']['up']['kernel']"
    assert found[f"state.params{kernel}"] == ((), ())
    assert any(found[f"state.opt_state[1][0].mu{kernel}"])


def test_megatron_stays_within_a_host_and_data_goes_across() -> None:
    for proposal in propose("megatron-data", programs.model("gpt").facts, A100):
        (data, model) = proposal.mesh
        assert data[0] == "data"
        assert model[0] == "model"
        assert model[1] <= A100.devices_per_host


def test_megatron_and_zero_split_a_weight_both_ways() -> None:
    found = layouts("megatron-zero")[-1]
    assert found["state.params['h_0']['mlp']['up']['kernel']"] == (("data",), ("model",))


def test_experts_of_a_mixture_lie_on_devices_that_share_the_batch() -> None:
    for found in layouts("expert", "moe"):
        (up,) = [dims for name, dims in found.items() if name.endswith("['experts']['up']") and "params" in name]
        (tokens,) = [dims for name, dims in found.items() if name.startswith("batch")]
        assert "expert" in up[0]
        assert "expert" in tokens[0]


def test_positions_are_split_by_sequence_parallelism() -> None:
    for proposal in propose("sequence", programs.model("gpt").facts, A100):
        assert [dims for dims in proposal.pins.values() if len(dims) == 3 and "sequence" in dims[1]]


def test_late_layers_are_split_by_channels() -> None:
    for found in layouts("channel", "convnet"):
        kernels = [name for name, dims in found.items() if "model" in str(dims) and "params" in name]
        assert kernels
        assert not any("stem" in name for name in kernels)


def test_rows_of_an_embedding_are_split_and_the_tower_is_whole() -> None:
    facts = programs.lookup_tower(rows=4096, width=16, hidden=32, batch=64).facts
    names_of = {leaf.value: leaf.name for leaf in facts.leaves}
    for proposal in propose("embedding", facts, A100):
        found = {names_of[v]: dims for v, dims in proposal.pins.items()}
        assert found["state['params']['table']"][0]
        assert not any(found["state['params']['tower']['up']"])


def test_the_search_keeps_to_what_an_expert_laid_out() -> None:
    found = consult("zero3", programs.model("gpt").facts, A100)
    assert found.best is not None
    assert found.best.solution is not None
    for v, dims in found.best.proposal.pins.items():
        assert found.best.solution.dims(v) == dims


def test_the_best_variant_that_fits_speaks_for_its_expert() -> None:
    found = consult("zero3", programs.model("gpt").facts, A100)
    assert found.best is not None
    assert len(found.trials) == 3
    assert found.best.step_time_s == min(trial.step_time_s for trial in found.trials if trial.fits)


def test_a_plan_over_the_limit_does_not_count_but_is_known() -> None:
    facts = programs.model("gpt").facts
    found = consult("data", facts, A100, memory_limit=300_000)
    assert found.best is None
    assert "arguments alone take" in found.why
    for trial in found.trials:
        assert trial.solution is not None
        assert trial.solution.predicted.memory.peak_bytes > 300_000


@pytest.mark.parametrize(
    ("name", "model", "why"),
    [
        ("expert", "gpt", "no weight has a dimension of experts"),
        ("channel", "gpt", "no convolution has weights"),
        ("embedding", "convnet", "no parameter is an embedding table"),
        ("sequence", "convnet", "no activation of shape batch x sequence x features"),
    ],
)
def test_an_expert_declines_with_a_reason(name: str, model: str, why: str) -> None:
    assert why in consult(name, programs.model(model).facts, A100).why


@pytest.mark.parametrize("name", names())
def test_one_device_needs_no_expert(name: str) -> None:
    one = dataclasses.replace(Cluster.load("cpu:1"), devices_per_host=1)
    with pytest.raises(NotApplicable):
        propose(name, programs.model("gpt").facts, one)


def test_an_unknown_expert_is_an_error_with_the_names() -> None:
    with pytest.raises(RhinoError, match="no expert is called 'tofu'") as error:
        consult("tofu", programs.model("gpt").facts, A100)
    assert "megatron-data" in error.value.remedy


def test_a_function_planned_by_an_expert_trains_like_the_function() -> None:
    def step(w: tuple[Any, ...], x: Any) -> Any:
        def loss(w: tuple[Any, ...]) -> Any:
            return (jax.nn.relu(x @ w[0]) @ w[1]).var()

        value, grads = jax.value_and_grad(loss)(w)
        return jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), value

    rng = np.random.default_rng(0)
    weights = (jnp.asarray(rng.normal(size=(16, 32)), jnp.float32), jnp.asarray(rng.normal(size=(32, 8)), jnp.float32))
    x = jnp.asarray(rng.normal(size=(8, 16)), jnp.float32)
    cluster = Cluster.local()
    plan = rhino.experts.plan("megatron", step, cluster, weights, x, donate_argnums=(0,))
    assert plan.arguments[0].sharding == ((), ("model",))
    assert plan.in_shardings[0][0].spec == jax.sharding.PartitionSpec(None, "model")
    want_w, want_loss = step(weights, x)
    parallel = rhino.parallelize(step, cluster=cluster, plan=plan, donate_argnums=(0,))
    got_w, got_loss = parallel(weights, x)
    np.testing.assert_allclose(got_loss, want_loss, rtol=1e-5)
    np.testing.assert_allclose(got_w[1], want_w[1], rtol=1e-5, atol=1e-6)


MATMUL = """
func.func @main(%w: tensor<32x32xf32>, %x: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
  return %0 : tensor<64x32xf32>
}
"""


def test_a_module_is_planned_as_text() -> None:
    plan = rhino.experts.plan("data", MATMUL, "dgx-a100:1")
    assert plan.mesh == (("data", 8),)
    assert [tensor.sharding for tensor in plan.arguments] == [((), ()), (("data",), ())]
    assert 'sdy.mesh @mesh = <["data"=8]>' in plan.module


def test_a_parsed_module_is_left_as_it_is() -> None:
    module = parse_module(MATMUL, "test")
    before = str(module)
    rhino.experts.plan("data", module, "dgx-a100:1")
    assert str(module) == before


def test_no_plan_is_an_error_that_says_why() -> None:
    with pytest.raises(RhinoError, match="expert parallel has no plan of the step on dgx-a100:1: no weight"):
        rhino.experts.plan("expert", MATMUL, "dgx-a100:1")


def test_a_program_with_shardings_of_its_own_is_refused() -> None:
    annotated = rhino.experts.plan("data", MATMUL, "dgx-a100:1").module
    with pytest.raises(RhinoError, match="has a sharding already"):
        rhino.experts.plan("data", annotated, "dgx-a100:1")


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RhinoError, match=r"nowhere\.mlir: No such file"):
        rhino.experts.plan("data", "nowhere.mlir", "dgx-a100:1")


def test_the_guide_describes_every_expert() -> None:
    guide = (Path(__file__).parents[3] / "docs/guide/experts.md").read_text(encoding="utf-8")
    section = guide.partition("## The experts\n")[2].partition("\n## ")[0]
    described = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert tuple(described) == names()
