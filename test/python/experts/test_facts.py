"""What experts read off real training steps: what a parameter does, and which state is its own."""

from __future__ import annotations

import expert_programs as programs
import pytest

from rhino.experts.facts import ProgramFacts, ProgramLeaf, common_end, path


def named(facts: ProgramFacts, *words: str) -> ProgramLeaf:
    (leaf,) = [leaf for leaf in facts.leaves if all(word in path(leaf.name) for word in words)]
    return leaf


@pytest.fixture(scope="module")
def gpt() -> ProgramFacts:
    return programs.model("gpt").facts


def test_a_projection_to_heads_contracts_the_width(gpt: ProgramFacts) -> None:
    use = named(gpt, "params", "'h_0'", "'query'", "'kernel'").use
    assert use is not None
    assert (use.kind, use.contracted, use.outputs) == ("dot", (0,), (1, 2))


def test_the_output_projection_contracts_the_heads(gpt: ProgramFacts) -> None:
    use = named(gpt, "params", "'h_0'", "'out'", "'kernel'").use
    assert use is not None
    assert (use.contracted, use.outputs) == ((0, 1), (2,))


def test_an_embedding_is_looked_up_by_rows_though_it_is_also_the_output_layer(gpt: ProgramFacts) -> None:
    use = named(gpt, "params", "'wte'").use
    assert use is not None
    assert (use.kind, use.indexed) == ("gather", (0,))


def test_moments_belong_to_their_parameter(gpt: ProgramFacts) -> None:
    for leaf in gpt.state:
        if leaf.shape:
            owner = gpt.leaves[leaf.owner]
            assert owner.role == "param"
            assert common_end(path(leaf.name), path(owner.name)) >= len(path(owner.name)) - 2


def test_without_names_moments_are_found_by_the_update_they_meet_in() -> None:
    graph = programs.model("gpt").graph
    known = {a.name: i for i, a in enumerate(graph.arguments)}
    import dataclasses

    from rhino.experts.facts import read

    nameless = dataclasses.replace(
        graph, arguments=[dataclasses.replace(a, name=f"%arg{i}") for i, a in enumerate(graph.arguments)]
    )
    facts = read(nameless)
    mu = known["state.opt_state[1][0].mu['h_1']['mlp']['up']['kernel']"]
    assert facts.leaves[mu].owner == known["state.params['h_1']['mlp']['up']['kernel']"]


def test_the_layer_dimension_of_a_scanned_model_is_known() -> None:
    facts = programs.model("gpt", scan=True).facts
    leaf = named(facts, "params", "'up'", "'kernel'")
    assert leaf.stacked == (0,)
    assert leaf.use is not None
    assert (leaf.use.contracted, leaf.use.outputs) == ((1,), (2,))


def test_a_convolution_contracts_its_input_channels() -> None:
    facts = programs.model("convnet").facts
    use = named(facts, "params", "'block_0_0'", "'Conv_1'").use
    assert use is not None
    assert (use.kind, use.contracted, use.outputs) == ("convolution", (2,), (3,))


def test_the_experts_of_a_mixture_share_their_dimension_with_the_tokens() -> None:
    facts = programs.model("moe").facts
    use = named(facts, "params", "'experts'", "'up'").use
    assert use is not None
    assert use.shared == (0,)


def test_the_batch_is_what_has_the_leading_size_of_the_data(gpt: ProgramFacts) -> None:
    assert [leaf.name for leaf in gpt.batch] == ["batch['tokens']"]
