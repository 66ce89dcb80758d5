"""What tests of the structure read of the sources: which files there are, what they import, which package they are of.

Owns reading them. The rules are in the tests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RHINO = ROOT / "python/rhino"
SOURCES = sorted(RHINO.rglob("*.py"))
OURS = [*SOURCES, *sorted((ROOT / "bench").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.py"))]


@cache
def tree(path: Path) -> ast.Module:
    """A source, parsed; a file of tests that asks for many forgets them at its end."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Every absolute module name that `path` imports, wherever in the file, with its line."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            # `from jax import _src` names a module too.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def package_of(path: Path) -> str:
    """A source's package as the map names it: `program`, `passes/plan`, `dialect`; `rhino` for files of its folder."""
    return "/".join(path.relative_to(RHINO).parts[:-1]) or "rhino"
