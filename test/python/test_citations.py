"""Sources and design pages point at each other, and at things that exist.

Owns what a docstring or comment may cite (`docs/design/search.md, "Memory"`), and what a design page may name of the
code.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = sorted(path for name in ("python", "passes", "dialect") for path in (ROOT / name).rglob("*.py"))
SOURCES = [
    *PRODUCT,
    *sorted(path for name in ("test", "bench", "examples", "tools") for path in (ROOT / name).rglob("*.py")),
]
PAGES = [*sorted((ROOT / "docs/design").glob("*.md")), ROOT / "docs/glossary.md"]
CITES = re.compile(r"docs/|section|§", re.IGNORECASE)  # in all that the next two find
CITATION = re.compile(r'\b(docs/[\w/-]+\.md)(?:, "([^"]+)")?')
SECTION = re.compile(r"\bsection \d|§ ?\d|\b\d-[a-z]+ section", re.IGNORECASE)
_MISSING = 'docs/design/search.md has no heading "Memories"'
PAPER = re.compile(r"\b\d{4}\.\d{4,5}\b")


@cache
def prose(source: str) -> tuple[str, ...]:
    """The docstrings and the runs of comments of a source, each as one line; none where no text of it can cite."""
    return tuple(_prose(source)) if CITES.search(source) else ()


def _prose(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield " ".join((ast.get_docstring(node) or "").split())
    run: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield " ".join(run)
                run = []
            run.append(token.string.lstrip("# "))
            last = token.start[0]
    yield " ".join(run)


@cache
def headings(page: Path) -> frozenset[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return frozenset(re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE))


def wrong_citations(source: str, root: Path) -> list[str]:
    """What a source cites that is not in the repository."""
    wrong = []
    for text in prose(source):
        for page, heading in CITATION.findall(text):
            if not (root / page).is_file():
                wrong.append(f"{page} is not there")
            elif heading and heading not in headings(root / page):
                wrong.append(f'{page} has no heading "{heading}"')
        if SECTION.search(text) and not PAPER.search(text):
            wrong.append(f"'{SECTION.search(text)[0]}' of a document that is not named")  # type: ignore[index]
    return wrong


def test_what_docstrings_cite_is_there() -> None:
    wrong, count = [], 0
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        count += sum(bool(heading) for text in prose(source) for _, heading in CITATION.findall(text))
        wrong += [f"{path.relative_to(ROOT)}: {problem}" for problem in wrong_citations(source, ROOT)]
    assert not wrong, "\n".join(wrong)
    assert count > 20


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('"""As docs/design/search.md,\n"Memory", has it."""', None),
        ('"""As docs/design/searches.md has it."""', "docs/design/searches.md is not there"),
        ('def f():\n    """See docs/design/search.md,\n    "Memories".\n    """', _MISSING),
        ('x = 1  # see docs/design/search.md,\n# "Memories"', _MISSING),
        ('"""The rings of 2-search section 4."""', "'2-search section' of a document that is not named"),
        ('"""The model of 2211.05322 §3.2."""', None),
    ],
)  # fmt: skip
def test_a_wrong_citation_is_found(source: str, problem: str | None) -> None:
    assert wrong_citations(source, ROOT) == ([problem] if problem else [])


@cache
def defined() -> dict[str, frozenset[str]]:
    """Of every name of the product, its files and folders; of attributes, their classes, too."""
    found: dict[str, set[str]] = {}
    for path in PRODUCT:
        homes = {path.stem, path.parent.name}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                for inner in ast.walk(node):
                    for name in _names(inner):
                        found.setdefault(name, set()).add(node.name)
            for name in _names(node):
                found.setdefault(name, set()).update(homes)
    return {name: frozenset(homes) for name, homes in found.items()}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.AnnAssign | ast.Assign):
        for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
            if isinstance(target, ast.Name | ast.Attribute):
                yield target.id if isinstance(target, ast.Name) else target.attr


def test_what_design_pages_name_of_the_code_is_there() -> None:
    """`rhino.package.module.Name`: the name is the module's, or the class's before it. Packages are not looked at."""
    modules = {path.stem for path in PRODUCT} | {path.parent.name for path in PRODUCT}
    wrong, count = [], 0
    for page in PAGES:
        for name in re.findall(r"`(rhino(?:\.\w+){2,})`", page.read_text(encoding="utf-8")):
            *_, before, last = name.split(".")
            count += 1
            if last not in modules and before not in defined().get(last, ()):
                wrong.append(f"{page.relative_to(ROOT)}: {name}")
    assert not wrong, "\n".join(wrong)
    assert count > 100


def test_tests_that_design_pages_name_are_there() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "test/python").rglob("*.py")))
    there = set(re.findall(r"^\s*def (test_\w+)", text, re.MULTILINE))
    there |= {path.stem for path in (ROOT / "test/python").rglob("test_*.py")}
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`(?:[\w/]*/)?(test_\w+)(?:\.py)?`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    assert not sorted(f"{page}: {name}" for page, name in named if name not in there)
