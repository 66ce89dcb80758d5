"""The textual pipeline and option syntax."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhino.passes.pipeline_text import Element, PipelineSyntaxError, parse_elements, parse_options, parse_pipeline


def test_nested_pipeline_with_columns() -> None:
    found = parse_pipeline("builtin.module( cse, func.func(a{k=v},b) ,rhino-x{m={n=1} l='x y'})")
    assert found == (
        Element("cse", 17),
        Element("func.func", 22, children=(Element("a", 32, "k=v"), Element("b", 39))),
        Element("rhino-x", 43, "m={n=1} l='x y'"),
    )


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", []),
        ("a=1", [("a", "1")]),
        ("  a=1   b=x,y  ", [("a", "1"), ("b", "x,y")]),
        ("flag a=", [("flag", ""), ("a", "")]),
        ("a='p q' b=\"r's\"", [("a", "p q"), ("b", "r's")]),
        ("a={n=1 m={o=2}} b=f(x, y)", [("a", "n=1 m={o=2}"), ("b", "f(x, y)")]),
        ("path=./a.b/c-d.yaml:2", [("path", "./a.b/c-d.yaml:2")]),
        ("a=b=c", [("a", "b=c")]),
        ("a={x},{y}", [("a", "{x},{y}")]),
    ],
)
def test_options(text: str, pairs: list[tuple[str, str]]) -> None:
    assert parse_options(text) == pairs


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("a,,b", 3, "expected a pass name, got ','"),
        ("a,", 3, "expected a pass after ','"),
        ("a)", 2, "unexpected ')'"),
        ("a(b", 4, "expected ')' to close 'a('"),
        ("a{b=(}", 7, "expected ')' before the end"),
        ("a{b='}", 7, "expected ''' before the end"),
        ("a b", 3, "expected ',' between passes, got 'b'"),
        ("=", 1, "expected a pass name, got '='"),
    ],
)
def test_errors_have_columns(text: str, column: int, message: str) -> None:
    with pytest.raises(PipelineSyntaxError) as error:
        parse_elements(text)
    assert (error.value.column, error.value.text) == (column, text)
    assert message in error.value.message


@pytest.mark.parametrize("text", ["=1", "a=1 =2", "a='x", "a={x"])
def test_bad_options(text: str) -> None:
    with pytest.raises(PipelineSyntaxError):
        parse_options(text)


@given(st.text("ab-.,(){}='\" ", max_size=24))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        elements = parse_elements(text)
    except PipelineSyntaxError as error:
        assert 1 <= error.column <= len(text) + 1
        return
    for element in elements:
        assert text[element.column - 1 :].startswith(element.name)
