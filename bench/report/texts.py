"""Figures in texts: `<!-- result NAME -->4.7 s<!-- /result -->` is what the result of that name must be.

Owns how pages quote results, and which numbers may stand in the front pages without being one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from bench._common import ROOT
from bench.report import console
from bench.report.store import Run

# Or code, where the same characters are no quote.
_CODE = r"(?:^```(?:.|\n)*?^```$|`[^`\n]*`)"
_QUOTE = re.compile(rf"<!-- result (?P<name>\S+) -->(?P<text>.*?)<!-- /result -->|{_CODE}", re.MULTILINE)
_HALF = re.compile(r"<!-- */?result\b")
_UNITS = r"(?:[nmµu]?s|seconds?|minutes?|hours?|[KMGT]i?B|(?:times|percent)\b|[%×x])(?![\w/])"
_NUMBER = re.compile(rf"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?:[ \u00a0-]?{_UNITS})")
# What no reader takes for a number of the page: code, comments, and where links lead.
_HIDDEN = re.compile(rf"{_CODE}|<!--(?:.|\n)*?-->|\]\([^)]*\)", re.MULTILINE)
FRONT = ("README.md", "docs/index.md")


@dataclass(frozen=True, slots=True)
class Allowed:
    """A number with a unit that a front page may state though it is no result, and why."""

    page: str
    text: str
    why: str


ALLOWED: tuple[Allowed, ...] = ()


def updated(text: str, figures: Mapping[str, str]) -> str:
    """The text with every quoted result as it is; unknown names stay, `check_quotes` reports them."""

    def as_it_is(quote: re.Match[str]) -> str:
        name = quote["name"]
        if name is None:
            return quote[0]
        return f"<!-- result {name} -->{figures.get(name, quote['text'])}<!-- /result -->"

    return _QUOTE.sub(as_it_is, text)


def check_quotes(page: str, text: str, figures: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the quotes of a page, with place and remedy."""
    for quote in _QUOTE.finditer(text):
        name, said, number = quote["name"], quote["text"], text.count("\n", 0, quote.start()) + 1
        if name is None:
            continue
        if name not in figures:
            near = get_close_matches(name, figures, 3, 0.5)
            listed = f"python -m bench.report --list {name.partition('/')[0]} lists them"
            hint = f"near are {', '.join(near)}" if near else listed
            yield f"{page}:{number}: no result is named {name}; {hint}"
        elif said != figures[name]:
            yield f"{page}:{number}: {name} is {figures[name]}, not {said}; run python -m bench.report --write"
    for number, line in enumerate(_QUOTE.sub(_blank, text).split("\n"), 1):
        if _HALF.search(line):
            yield f"{page}:{number}: half a quote; it is <!-- result NAME -->TEXT<!-- /result --> on one line"


def _blank(found: re.Match[str]) -> str:
    """Something that is no word, with as many lines."""
    return "\n" * found[0].count("\n") or "\0"


def loose_numbers(page: str, text: str, allowed: Sequence[Allowed] = ALLOWED) -> Iterator[str]:
    """Numbers with a unit of measurement that stand in a page and quote no result; and allowances of none."""
    mine = [entry for entry in allowed if entry.page == page]
    used = set()
    plain = _HIDDEN.sub(_blank, _QUOTE.sub(_blank, text))
    for number, line in enumerate(plain.split("\n"), 1):
        for entry in mine:
            if entry.text in line:
                used.add(entry)
                line = line.replace(entry.text, "\0")
        found = [match[0] for match in _NUMBER.finditer(line)]
        if found:
            yield (
                f"{page}:{number}: no result is quoted by {', '.join(found)}; quote one "
                "(python -m bench.report --list SECTION), or say in bench/report/texts.py why it is none"
            )
    for entry in mine:
        if entry not in used:
            yield f"{page}: {entry.text!r}, which bench/report/texts.py allows, is not there; delete it from the list"


def check_console(outputs: Mapping[str, Run], root: Path = ROOT) -> Iterator[str]:
    """Slow commands whose output is not kept, or is not what their page shows."""
    for path in console.pages(root):
        for command in console.commands(path, root):
            if not command.slow or console.file_shown(command) is not None:
                continue
            where, again = f"{command.page}:{command.line}", f"run python -m bench.report --only console/{command.page}"
            run = outputs.get(command.page)
            if run is None or command.text not in run.results["outputs"]:
                yield f"{where}: no output of `{command.text}` is kept; {again}"
                continue
            line = console.difference(command.shown, run.results["outputs"][command.text]) if command.shown else None
            if line is not None:
                commit = run.commit[:10]
                yield f"{where}: at {commit} `{command.text}` did not print {line!r}; show what it prints, or {again}"
