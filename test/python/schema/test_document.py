"""Documents: values, places and errors are the same whether a text is JSON or YAML; no text is a traceback."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhino.errors import RhinoError
from rhino.schema.document import Document, from_data, from_json
from rhino.schema.kinds import Bool, Field, Float, Int, ListOf, MapOf, Record, String, TupleOf
from rhino.schema.yaml_text import from_yaml

POINT = Record(
    {
        "name": Field(String(filled=True), "a name"),
        "at": Field(TupleOf((Int(0), Int(0))), "the place"),
        "rates": Field(MapOf(Float(above=0), ("f32", "bf16"), str.lower), "rates by type", optional=True),
        "seen": Field(ListOf(Bool(), filled=True), "when it was seen", optional=True),
    }
)
GOOD = """{
  "name": "a",
  "at": [1,
         2],
  "rates": {"F32": 1e9,
            "bf16": 2}, "seen": [true,
  false]
}
"""
READ = {"name": "a", "at": (1, 2), "rates": {"f32": 1e9, "bf16": 2.0}, "seen": (True, False)}


def as_json(text: str) -> Document:
    return from_json(text, "the point", "p", "")


def as_yaml(text: str) -> Document:
    return from_yaml(text, "the point", "p", "write one")


def test_json_and_yaml_are_read_alike() -> None:
    for document in (as_json(GOOD), as_yaml(GOOD), from_data(json.loads(GOOD), "the point", "p")):
        assert POINT.read(document.checked(POINT)) == READ


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"name": "a"', '"name": " "', "p:2:3: name must not be empty; give a name"),
        ('  "name": "a",\n', "", "p:1:1: the point has no key 'name'; give a name"),
        ('"name"', '"nam"', "p:2:3: nam is not known; did you mean name? known: name, at, rates, seen"),
        ("         2]", "  -2]", "p:4:3: at[1] must be at least 0, got -2; give the place"),
        ("2]", "1.5]", "p:4:10: at[1] must be an integer, got 1.5; give the place"),
        ("2]", "9223372036854775808]", "p:4:10: at[1] must be an integer of 64 bits, got 9223372036854775808; give"),
        ("2],", "2, 3],", "p:3:3: at must be [i64 >= 0, i64 >= 0], got [1, 2, 3]; give the place"),
        ('"bf16": 2', '"f32": 2', "p:6:13: rates.f32 is 'F32' again; remove one of the two"),
        ('"bf16": 2', '"bf16": 0', "p:6:13: rates.bf16 must be above 0, got 0; give rates by type"),
        ('"bf16": 2', '"bf17": 2', "p:6:13: rates.bf17 is not known; did you mean bf16? known: f32, bf16"),
        ("  false", "  null", "p:7:3: seen[1] must be true or false, got nothing; give when it was seen"),
        ("[true,\n  false]", "[]", "p:6:25: seen must not be empty; give when it was seen"),
        ("[true,\n  false]", '"yes\\nno"', 'p:6:25: seen must be an array, got "yes no"; give when it was seen'),
    ],
)
def test_an_error_has_its_place_cause_and_remedy_in_both(old: str, new: str, message: str) -> None:
    assert old in GOOD
    for read in (as_json, as_yaml):
        with pytest.raises(RhinoError) as caught:
            read(GOOD.replace(old, new, 1)).checked(POINT)
        assert str(caught.value).startswith(message)


def test_of_two_equal_keys_of_json_the_last_one_counts_and_is_the_place() -> None:
    with pytest.raises(RhinoError, match=r"^p:3:1: name must be a string, got 2"):
        as_json('{"name": "a", "at": [1, 2],\n"at": [1, 2],\n"name": 2}').checked(POINT)


@pytest.mark.parametrize(
    ("text", "json_says", "yaml_says"),
    [
        ("", "p:1:1: not JSON: Expecting value", "p: the file is empty; write one"),
        ('{"name": ', "p:1:10: not JSON: Expecting value", "p:1:10: not valid YAML"),
        ("[" * 100_000, "p:1:1: not JSON that can be read", "p:1:1: not YAML that can be read"),
        (
            '{"name": "a", "at": [' + "9" * 5000 + ", 1]}",
            "p:1:1: not JSON that can be read",
            "p:1:22: at[0] must be an in",
        ),
    ],
)
def test_texts_that_cannot_be_read_are_one_line(text: str, json_says: str, yaml_says: str) -> None:
    for read, says in ((as_json, json_says), (as_yaml, yaml_says)):
        with pytest.raises(RhinoError) as caught:
            read(text).checked(POINT)
        assert str(caught.value).startswith(says) and "\n" not in str(caught.value)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
DATA = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
)


def paths(data: object) -> list[tuple[str | int, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [(), *((key, *below) for key, inner in items for below in paths(inner))]


@given(data=DATA, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans())
def test_every_place_of_json_is_where_its_key_or_element_begins(
    data: object, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)
    document, lines = as_json(text), text.split("\n")
    for path in paths(data):
        line, column = document.place(path)
        value, inner = document.data, lines[line - 1][column - 1 :]
        for step in path:
            value = value[step]
        start = json.dumps(path[-1] if path and isinstance(path[-1], str) else value, ensure_ascii=ascii_only)
        assert inner.startswith(re.split(r"[\[{]", start)[0] if isinstance(value, list | dict) else start)
