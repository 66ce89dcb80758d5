"""Megatron's columns and rows, decided by dataflow on models whose names were not read."""

from __future__ import annotations

import expert_programs as programs
import pytest

from rhino.experts.tensor_flow import residual_values, split_values, tensor_dims, vocabularies

COLUMNS = {"query", "key", "value", "up", "gate", "lm_head", "words", "embed", "wte"}
ROWS = {"out", "down"}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "t5"])
def test_attention_and_mlp_alternate_columns_and_rows(name: str, scan: bool) -> None:
    facts = programs.model(name, scan=scan).facts
    dims = tensor_dims(facts, 2)
    seen = set()
    for leaf in facts.params:
        what = programs.key(leaf)
        if leaf.use is None or leaf.use.kind != "dot" or what not in COLUMNS | ROWS:
            continue
        dim = dims[leaf.index]
        assert dim in (leaf.use.contracted if what in ROWS else leaf.use.outputs), leaf.name
        seen.add(what)
    assert {"query", "out", "up", "down"} <= seen


def test_heads_are_split_rather_than_what_is_in_a_head() -> None:
    facts = programs.model("gpt").facts
    (query,) = [leaf for leaf in facts.params if "'h_0'" in leaf.name and leaf.name.endswith("['query']['kernel']")]
    assert tensor_dims(facts, 2)[query.index] == 1  # [width, heads, head_dim]


def test_biases_follow_the_activation_they_are_added_to() -> None:
    facts = programs.model("gpt").facts
    dims = tensor_dims(facts, 2)
    biases = [leaf for leaf in facts.params if leaf.name.endswith("['bias']")]
    split = {leaf.name.split("'")[-4] for leaf in biases if leaf.index in dims}
    assert split == {"query", "key", "value", "up"}


def test_a_chain_of_dense_layers_alternates() -> None:
    facts = programs.dense_chain((64, 128, 128, 128, 64), batch=32).facts
    assert tensor_dims(facts, 4) == {0: 1, 1: 0, 2: 1, 3: 0}


def test_a_dimension_that_does_not_divide_stays_whole() -> None:
    facts = programs.dense_chain((64, 90, 64, 96, 64), batch=32).facts
    assert tensor_dims(facts, 4) == {1: 1, 2: 0, 3: 1}


def test_positions_are_no_vocabulary() -> None:
    facts = programs.model("bert", vocab=1024).facts
    assert [programs.key(leaf) for leaf, _ in vocabularies(facts)] == ["words"]


def test_a_router_is_no_column() -> None:
    facts = programs.model("moe").facts
    dims = tensor_dims(facts, 2)
    (gate,) = [leaf for leaf in facts.params if leaf.name.endswith("['gate']")]
    assert gate.index not in dims
    experts = {leaf.name.split("'")[-2]: dims[leaf.index] for leaf in facts.params if leaf.use and leaf.use.shared}
    assert experts == {"up": 2, "down": 1}  # the hidden width of an expert: [experts, width, hidden] and back


def test_the_residual_stream_of_a_transformer_is_found() -> None:
    facts = programs.model("gpt").facts
    assert [facts.graph.values[v].shape for v in residual_values(facts)] == [(16, 64, 64)]


def test_positions_added_to_one_example_are_no_weight_of_the_next_product() -> None:
    """With a batch of one a position table has the shape of the stream it is added to."""
    facts = programs.model("gpt", batch=1).facts
    dims = tensor_dims(facts, 2)
    for what in ("query", "key", "value"):
        kernels = [leaf for leaf in facts.params if leaf.name.endswith(f"['{what}']['kernel']")]
        assert kernels and all(dims[leaf.index] == 1 for leaf in kernels)


def test_what_lies_split_between_columns_and_rows() -> None:
    facts = programs.model("gpt").facts
    found = {facts.graph.values[v].shape: d for v, d in split_values(facts, 2).items()}
    assert found == {(16, 64, 4, 16): 2, (16, 64, 256): 2}


def test_a_fused_projection_is_split_within_its_parts() -> None:
    facts = programs.model("clip").facts
    dims = tensor_dims(facts, 2)
    fused = [leaf for leaf in facts.params if leaf.name.endswith("['qkv']['kernel']")]
    assert fused
    for leaf in fused:
        assert leaf.shape[-2] == 3, "the three parts are a dimension of their own"
        assert dims[leaf.index] == len(leaf.shape) - 1
    assert all(dims[leaf.index] in (leaf.use.contracted if leaf.use else ()) for leaf in facts.params
               if leaf.name.endswith("['out']['kernel']"))  # fmt: skip


def test_the_gates_of_an_lstm_are_split_alike_and_its_projection_by_rows() -> None:
    facts = programs.model("lstm").facts
    dims = {leaf.name.split(".")[-1]: tensor_dims(facts, 4).get(leaf.index) for leaf in facts.params}
    shapes = {leaf.name.split(".")[-1]: leaf.shape for leaf in facts.params}
    assert shapes["input_weight"][-2] == 4, "the four gates are a dimension of their own"
    assert dims["input_weight"] == dims["state_weight"] == len(shapes["input_weight"]) - 1
    assert dims["projection"] == len(shapes["projection"]) - 2
