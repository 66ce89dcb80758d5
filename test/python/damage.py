"""Damage to a document of plain data, for tests of how it is told: a value that nothing may be, at any place."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rhino.schema.kinds import Fault, Path


def items(data: Any) -> list[tuple[Any, Any]]:
    """The keys or positions in a value, with what is there."""
    return list(data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ())


@st.composite
def damaged(draw: st.DrawFn, data: Any, junk: tuple[Any, ...]) -> Path:
    """Put one of some values in place of another one, anywhere in the data, which is changed; and say where."""
    path: Path = ()
    while not path or (items(data[path[-1]]) and draw(st.booleans())):
        data = data[path[-1]] if path else data
        path = (*path, draw(st.sampled_from([key for key, _ in items(data)])))
    # One truth value in place of another is no damage.
    data[path[-1]] = draw(
        st.sampled_from([j for j in junk if not (isinstance(j, bool) and isinstance(data[path[-1]], bool))])
    )
    return path


def text_of(path: Path) -> str:
    """A path as errors write it."""
    return Fault(path, "").at("").strip(" .")


def is_of(found: str, path: Path) -> bool:
    """Whether the path in an error is that where something was put, or of what is in it, or of what it is in."""
    return found.startswith(text_of(path)) or text_of(path).startswith(found)
