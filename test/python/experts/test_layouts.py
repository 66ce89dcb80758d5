"""How an expert's choices are combined: sizes divide, nothing is split twice over one axis, what is tied agrees."""

from __future__ import annotations

import expert_programs as programs
import pytest

from rhino.experts import NotApplicable
from rhino.experts.facts import ProgramFacts, ProgramLeaf
from rhino.experts.layouts import LayoutDraft, settle


@pytest.fixture(scope="module")
def facts() -> ProgramFacts:
    return programs.dense_chain((64, 256, 128), batch=48).facts


def draft(facts: ProgramFacts, **axes: int) -> LayoutDraft:
    return LayoutDraft(facts, tuple(axes.items()))


def first(facts: ProgramFacts) -> ProgramLeaf:
    return facts.params[0]  # [64, 256]


def test_the_largest_dimension_is_split(facts: ProgramFacts) -> None:
    d = draft(facts, data=8)
    assert d.split_largest(first(facts), ["data"])
    assert d.of(first(facts)) == [[], ["data"]]


def test_a_whole_dimension_is_preferred_to_a_larger_one_that_is_split(facts: ProgramFacts) -> None:
    d = draft(facts, data=4, model=8)
    d.split(first(facts), 1, ["model"])
    d.split_largest(first(facts), ["data"])
    assert d.of(first(facts)) == [["data"], ["model"]]


def test_two_axes_share_a_dimension_only_if_both_divide_it(facts: ProgramFacts) -> None:
    d = draft(facts, data=16, model=8)
    assert d.split(first(facts), 0, ["model"])
    assert not d.can(first(facts), 0, ["data"])  # 64 rows, 128 parts
    assert d.can(first(facts), 1, ["data"])


def test_an_axis_splits_one_dimension_of_a_tensor(facts: ProgramFacts) -> None:
    d = draft(facts, data=8)
    d.split(first(facts), 0, ["data"])
    assert not d.split(first(facts), 1, ["data"])


def test_a_layer_dimension_is_never_split() -> None:
    facts = programs.model("gpt", scan=True).facts
    d = draft(facts, data=2)
    for leaf in facts.params:
        d.split_largest(leaf, ["data"])
        assert not any(d.of(leaf)[dim] for dim in leaf.stacked)


def test_a_batch_that_does_not_divide_is_a_reason(facts: ProgramFacts) -> None:
    with pytest.raises(NotApplicable, match="batch of 48 cannot be split 32 ways"):
        draft(facts, data=32).split_batch(["data"])


def test_tied_values_take_the_layout_of_the_largest() -> None:
    facts = programs.model("convnet").facts
    name = "['block_0_0']['BatchNorm_0']"
    tied = [leaf for leaf in facts.leaves if name in leaf.name and leaf.name.endswith(("['scale']", "['mean']"))]
    pins = {leaf.value: ((("data",) if i else ()),) for i, leaf in enumerate(tied)}
    settled = settle(facts, pins)
    nodes = {facts.problem.node_of[leaf.value] for leaf in tied}
    assert len(set(settled.values())) <= len(nodes)
