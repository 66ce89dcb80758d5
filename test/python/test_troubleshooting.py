"""The troubleshooting page quotes messages that the code still has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
OURS, _, JAX = PAGE.partition("## Messages of JAX")
QUOTED = re.findall(r"^### `(.*)`$", OURS, re.MULTILINE)
_GAP = "\0"


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, with a gap for each value that is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else _GAP for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def messages() -> tuple[str, ...]:
    files = (ROOT / "python").rglob("*.py")
    return tuple(text for path in files for text in texts(ast.parse(path.read_text(encoding="utf-8"))))


def test_there_are_messages() -> None:
    assert len(QUOTED) > 30
    assert JAX


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_code_has_the_message(quoted: str) -> None:
    """The words between gaps follow each other in one message, with something put in, perhaps quoted, at every gap."""
    words = [re.escape(part.strip()) for part in quoted.split("...")]
    pattern = f"[^{_GAP}]{{0,2}}{_GAP}+[^{_GAP}]{{0,2}}".join(words)
    assert any(re.search(pattern, text) for text in messages()), f"no message like {quoted!r}"
