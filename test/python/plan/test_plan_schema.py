"""The one description of a plan: any plan survives its attribute and its file, and any damage is one located error."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from damage import damaged, is_of, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir

from rhino.dialect.attributes import RhinoPlan
from rhino.dialect.base import Scene, to_attr
from rhino.dialect.context import make_context, parse_text
from rhino.errors import RhinoError
from rhino.plan import KernelUse, PlanData, Tensor
from rhino.plan.data import SCHEMA, SUMMARY
from rhino.plan.file import dumps, loads, plan_data
from rhino.plan.module import read_plan
from rhino.schema.kinds import Bool, Float, Int, ListOf, MapOf, Record, Schema, String, TupleOf
from rhino.schema.records import record

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6)
AXES = ("x", "y", "z")


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Anything that a schema reads, made from the schema alone: a new field is covered by being described."""
    if isinstance(schema, String):
        return st.sampled_from(schema.choices) if schema.choices else TEXT
    if isinstance(schema, Bool):
        return st.booleans()
    if isinstance(schema, Int):
        return st.integers(-(2**63) if schema.minimum is None else schema.minimum, 2**63 - 1)
    if isinstance(schema, Float):
        return st.floats(schema.minimum, allow_nan=False, allow_infinity=False).map(abs)
    if isinstance(schema, ListOf):
        return st.lists(values(schema.element), max_size=3).map(tuple)
    if isinstance(schema, TupleOf):
        return st.tuples(*map(values, schema.elements))
    if isinstance(schema, MapOf):
        return st.dictionaries(
            st.sampled_from(schema.keys) if schema.keys else TEXT.filter(bool), values(schema.value), max_size=3
        )
    assert isinstance(schema, Record), schema
    given_ = {key: values(known.schema) for key, known in schema.fields.items() if key not in ("schema",)}
    optional = {key: made for key, made in given_.items() if schema.fields[key].optional and key != "role"}
    required = {key: made for key, made in given_.items() if key not in optional}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: schema.make(**fields))


@st.composite
def tensors(draw: st.DrawFn, axes: tuple[str, ...]) -> Tensor:
    shape = draw(st.lists(st.integers(1, 8), max_size=3).map(tuple))
    stored = tuple(
        size for whole in shape for size in ((2, whole // 2) if draw(st.booleans()) and whole % 2 == 0 else (whole,))
    )
    sharding = tuple(draw(st.lists(st.sampled_from(axes), max_size=2).map(tuple)) if axes else () for _ in stored)
    made = draw(values(record(Tensor)))
    return replace(
        made, shape=shape, stored_shape=stored, sharding=sharding, dtype=draw(st.sampled_from(("f32", "i8")))
    )


@st.composite
def plans(draw: st.DrawFn) -> PlanData:
    axes = draw(st.lists(st.sampled_from(AXES), unique=True).map(tuple))
    mesh = tuple((axis, draw(st.integers(1, 8))) for axis in axes)
    some = st.lists(tensors(axes), max_size=3).map(tuple)
    return replace(
        draw(values(record(PlanData))),
        mesh=mesh,
        arguments=draw(some),
        outputs=draw(some),
        source=draw(st.none() | TEXT),
    )


@pytest.fixture(scope="module")
def context() -> ir.Context:
    return make_context()


@settings(deadline=None, max_examples=80)
@given(plan=plans())
def test_a_plan_survives_its_attribute_and_its_file(context: ir.Context, plan: PlanData) -> None:
    beside = {name: getattr(plan, name) for name in ("machine", "arguments", "outputs", "source")}
    data = {key: value for key, value in plan_data(plan).items() if key not in beside}
    attribute = ir.Attribute.parse(str(RhinoPlan.to_attr({"schema": SCHEMA, **data}, context)), context)
    from_module = PlanData(**SUMMARY.read(RhinoPlan.from_attr(attribute)), **beside)
    assert from_module == plan
    assert loads(dumps(from_module), "p.json") == plan
    # What is left out is what reading gives again, so that a file's bytes depend on the plan alone.
    assert dumps(loads(dumps(plan), "p.json")) == dumps(plan)


@settings(deadline=None, max_examples=80)
@given(plan=plans(), choose=st.data())
def test_damage_of_a_file_is_one_error_at_its_place(plan: PlanData, choose: st.DataObject) -> None:
    data = json.loads(dumps(plan))
    path = choose.draw(damaged(data, (None, True, {"?": []}, [[[[]]]])))
    text = json.dumps(data, indent=1)
    with pytest.raises(RhinoError) as caught:
        loads(text, "p.json")
    found = re.match(r"p\.json:(\d+):(\d+): (\S+) ", str(caught.value))
    assert found is not None and "\n" not in str(caught.value) and caught.value.remedy
    assert is_of(found[3], path)
    if found[3] == text_of(path) and isinstance(path[-1], str):
        assert text.split("\n")[int(found[1]) - 1][int(found[2]) - 1 :].startswith(json.dumps(path[-1]))


@settings(deadline=None, max_examples=80)
@given(plan=plans(), choose=st.data())
def test_damage_of_an_attribute_has_its_path(context: ir.Context, plan: PlanData, choose: st.DataObject) -> None:
    data = {key: value for key, value in plan_data(plan).items() if key in SUMMARY.fields}
    path = choose.draw(damaged(data, (True, {"?": []}, [[[[]]]])))
    attribute = to_attr(data, context)
    module = parse_text(f"module attributes {{rhino.plan = {attribute}}} {{}}", context)
    told = list(RhinoPlan.problems(attribute, Scene(module.operation)))
    assert told and all(is_of(each.split()[0].removeprefix("rhino.plan."), path) for each in told)
    with pytest.raises(RhinoError) as caught:
        read_plan(module)
    assert caught.value.message == told[0].partition("; ")[0] and caught.value.remedy


@settings(deadline=None, max_examples=80)
@given(plan=plans(), choose=st.data())
def test_any_text_is_a_plan_or_one_located_error(plan: PlanData, choose: st.DataObject) -> None:
    text = dumps(plan)
    start = choose.draw(st.integers(0, len(text)))
    text = text[:start] + choose.draw(TEXT) + text[start + choose.draw(st.integers(0, 9)) :]
    try:
        loads(text, "p.json")
    except RhinoError as error:
        assert re.match(r"p\.json:\d+:\d+: \S", str(error)) and "\n" not in str(error)


def test_the_description_covers_what_a_plan_holds() -> None:
    for cls, left in ((PlanData, {"source"}), (Tensor, set()), (KernelUse, set())):
        assert set(record(cls).fields) == set(cls.__dataclass_fields__) - left
