"""Figures in texts: `<!-- result NAME -->4.7 s<!-- /result -->` is what the result of that name must be.

Owns how pages quote results, and which numbers may stand in a page without being one.
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
# Where figures are of their own time.
HISTORY = ("CHANGELOG.md",)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Numbers with a unit that a page may state though they are no results, and why."""

    page: str
    why: str
    texts: tuple[str, ...]


_CONSTANT = "what the code uses"
ALLOWED = (
    Allowed("CONTRIBUTING.md", "an error's text", ("0.0 KiB", "40 GiB", "40960.0 MiB", "2.93 KiB", "2.9 KiB")),
    Allowed("docs/design/cost-model.md", _CONSTANT, ("16 MiB", "97 %", "94 %", "40 %", "256 MiB", "750 us")),
    Allowed("docs/design/cost-model.md", "bench/data/gpu_steps.md", ("1.6 times", "50 ms", "1.25 times")),
    Allowed("docs/design/distributed.md", _CONSTANT, ("5 seconds",)),
    Allowed("docs/design/resharding.md", _CONSTANT, ("64 KiB", "up to 1 %")),
    Allowed("docs/design/pipelines.md", _CONSTANT, ("0.5 % faster",)),
    Allowed("docs/design/search.md", _CONSTANT, ("1 % at O1, 0.1 % at O2", "within 0.1 %")),
    Allowed("docs/design/stages.md", _CONSTANT, ("0.1 % open", "0.5 %")),
    Allowed("docs/guide/checkpoints.md", "Orbax's default", ("96 GB",)),
    Allowed(
        "docs/guide/clusters.md",
        "the vendor's datasheet, XLA's description, or NCCL's maintainers",
        ("4 x V100 16 GB", "8 x V100 16 GB", "8 x A100 80 GB", "8 x A100 40 GB", "8 x H100 80 GB", "8 x H200 141 GB",
         "4 x GB200 186 GB", "4 x GB300 279 GB",
         "8 x B200 180 GB", "8 x 200 Gbit/s", "8 x 400 Gbit/s", "80 GB H100 has 79.1 GiB"),
    ),
    Allowed("docs/guide/compile.md", _CONSTANT, ("16 MiB", "1 %")),
    Allowed("docs/guide/pipelines.md", _CONSTANT, ("0.5 % faster",)),
    Allowed("docs/guide/compile.md", "bench/data/gpu_steps.md", ("8 us", "5.1 ms instead of 7.3")),
    Allowed("docs/guide/distributed.md", _CONSTANT, ("1 MiB", "5 seconds")),
    Allowed("docs/design/offload.md", "bench/data/gpu_steps.md", ("1.7 %",)),
    Allowed("docs/design/offload.md", _CONSTANT, ("1 MiB",)),
    Allowed("docs/guide/memory.md", "bench/data/gpu_steps.md", ("1.5 times",)),
    Allowed("docs/reference/passes.md", _CONSTANT, ("1 MiB",)),
    Allowed("docs/guide/search.md", "a message's form", ("144 us instead of 173 us", "12.3 MiB")),
    Allowed("docs/guide/search.md", "what an option says", ("30 s",)),
)  # fmt: skip


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
    used: set[str] = set()
    plain = _HIDDEN.sub(_blank, _QUOTE.sub(_blank, text))
    for number, line in enumerate(plain.split("\n"), 1):
        for known in (known for entry in mine for known in entry.texts):
            if known in line:
                used.add(known)
                line = line.replace(known, "\0")
        found = [match[0] for match in _NUMBER.finditer(line)]
        if found:
            yield (
                f"{page}:{number}: no result is quoted by {', '.join(found)}; quote one "
                "(python -m bench.report --list SECTION), or say in bench/report/texts.py why it is none"
            )
    for known in (known for entry in mine for known in entry.texts if known not in used):
        yield f"{page}: {known!r}, which bench/report/texts.py allows, is not there; delete it from the list"


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
