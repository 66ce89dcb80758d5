"""Class names are unique across the library: a name in a traceback, an error or a search is one thing."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "python"


def test_no_class_name_is_defined_twice() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(homes) > 300
    assert not {name: places for name, places in homes.items() if len(places) > 1}
