"""Every attribute class: its example is valid, data survives the way to IR text and back, malformed data is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from rhino.dialect.attributes import ATTRIBUTES, RhinoCluster, RhinoPlan, RhinoRole, from_attr, to_attr
from rhino.dialect.base import Scene
from rhino.dialect.context import make_context, parse_text
from rhino.errors import RhinoError

PLAN = {
    "schema": 1,
    "level": "O1",
    "cluster": "dgx-h100:1",
    "mesh": [["x", 2], ["y", 4]],
    "stages": 1,
    "microbatches": 1,
    "schedule": "none",
    "predicted": {
        "step_time_s": 1e-3,
        "compute_s": 9e-4,
        "comm_s": 1e-4,
        "bubble_s": 0.0,
        "peak_bytes": 3 << 34,
        "comm_bytes": {"all-reduce": 123, "all-gather": 0},
    },
    "search": {"candidates": 12, "gap": 0.0},
}


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return make_context()


DATA = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b-c", "d e"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(data=DATA)
def test_plain_data_survives_attributes_and_text(context: ir.Context, data: object) -> None:
    attribute = to_attr(data, context)
    assert from_attr(attribute) == data
    # Text too: what a file holds is what was meant, to the last bit of a float.
    assert from_attr(ir.Attribute.parse(str(to_attr([data], context)), context)) == [data]


@pytest.mark.parametrize("data", [None, {1: "a"}, object(), {"a": {2}}, 1j])
def test_other_data_is_refused(context: ir.Context, data: object) -> None:
    with pytest.raises(TypeError):
        to_attr(data, context)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_example_is_valid_and_round_trips(context: ir.Context, name: str) -> None:
    cls = ATTRIBUTES[name]
    key, _, value = cls.example.partition(" = ")
    assert key == name
    attribute = ir.Attribute.parse(value, context)
    data = cls.from_attr(attribute)
    assert cls.to_attr(data, context) == attribute
    assert cls.__doc__


def test_every_class_has_its_own_name() -> None:
    expected = {"rhino." + cls.__name__.removeprefix("Rhino").lower() for cls in ATTRIBUTES.values()}
    assert set(ATTRIBUTES) == expected


def test_attach_and_read_on_a_module(context: ir.Context) -> None:
    module = parse_text("module {}", context)
    assert RhinoPlan.of(module) is None
    RhinoPlan.attach(module, PLAN)
    assert RhinoPlan.of(module) == PLAN
    again = parse_text(str(module), context)
    assert RhinoPlan.of(again.operation) == PLAN
    assert json.dumps(RhinoPlan.of(again))


def test_integers_stand_for_whole_floats(context: ir.Context) -> None:
    plan = {**PLAN, "predicted": {**PLAN["predicted"], "bubble_s": 0}}  # type: ignore[dict-item]
    assert RhinoPlan.to_attr(plan, context) == RhinoPlan.to_attr(PLAN, context)


def test_malformed_data_names_the_path_and_the_value(context: ir.Context) -> None:
    with pytest.raises(ValueError, match=r'rhino.role must be one of "param", .* got "weight"'):
        RhinoRole.to_attr("weight", context)
    with pytest.raises(ValueError, match=r"rhino.plan.predicted.peak_bytes must be at least 0, got -1"):
        RhinoPlan.to_attr({**PLAN, "predicted": {**PLAN["predicted"], "peak_bytes": -1}}, context)  # type: ignore[dict-item]
    with pytest.raises(RhinoError, match=r"rhino.cluster must be a dictionary, got 3; write its keys: name, device"):
        RhinoCluster.from_attr(ir.Attribute.parse("3 : i64", context))


def test_a_problem_of_the_schema_hides_those_that_assume_it(context: ir.Context) -> None:
    module = parse_text("module {}", context)
    attribute = ir.Attribute.parse('{schema = 2 : i64, mesh = "no list"}', context)
    problems = list(RhinoPlan.problems(attribute, Scene(module.operation)))
    assert any(problem.startswith('rhino.plan.mesh must be an array, got "no list"; give axes') for problem in problems)
    assert not any("twice" in problem for problem in problems)
