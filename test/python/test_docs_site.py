"""The docs' site: every page is in the navigation, and every page's Markdown means to it what it means to GitHub.

`./tools/test --only=docs` builds the site itself, where any warning is an error.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markdown
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def listed(entry: Any) -> Iterator[str]:
    """The pages under an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from listed(part)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = Counter(listed(CONFIG["nav"]))
    assert [page for page, count in pages.items() if count > 1] == []
    missing = {str(page.relative_to(DOCS)) for page in PAGES} - pages.keys()
    assert not missing, f"pages outside the navigation; add them to `nav` in mkdocs.yml: {sorted(missing)}"


def test_the_first_page_asks_the_questions_of_the_navigation() -> None:
    """Who reads the Markdown itself has no navigation."""
    (questions,) = (entry["How do I ..."] for entry in CONFIG["nav"] if "How do I ..." in entry)
    expected = [f"- [{title}]({page})" for entry in questions for title, page in entry.items()]
    assert re.findall(r"^- \[.*\?\]\(.*\)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE) == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_nothing_of_a_page_is_shown_as_it_is_written(page: Path) -> None:
    """Python-Markdown wants a blank line before a table or a list, and four columns for what belongs to an item."""
    extensions = [next(iter(name)) if isinstance(name, dict) else name for name in CONFIG["markdown_extensions"]]
    shown = markdown.markdown(page.read_text(encoding="utf-8"), extensions=extensions)
    text = re.sub(r"<(pre|code)\b.*?</\1>", "", shown, flags=re.DOTALL)
    raw = [line for line in html.unescape(text).splitlines() if re.match(r"(<p>)?(\||```|[-*] |\d+\. )", line)]
    assert not raw, "\n".join(raw)
