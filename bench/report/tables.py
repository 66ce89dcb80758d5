"""What a section of the page of results is made of: tables and facts whose every cell has a name, and their formats.

Owns names and formats of figures; knows no bench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench._common import BenchError
from bench.report.benches import Bench, Part
from bench.report.store import Run, slug

NONE = "–"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: its name, what it is called, a text per column, and the runs that they are from."""

    key: str
    label: str
    cells: tuple[str, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A table: what its rows are, the name and the heading of each further column, and the rows."""

    rows_are: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure beside the tables: its name, what it says, and its text."""

    key: str
    says: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """Part of the page: its name, the benches that it shows, title, a paragraph, tables and facts."""

    name: str
    benches: tuple[str, ...]
    title: str
    says: str
    tables: tuple[ResultTable, ...] = ()
    facts: tuple[Fact, ...] = field(default=())

    def figures(self) -> dict[str, str]:
        """Every figure by name: `SECTION/ROW/COLUMN` of a table, `SECTION/FACT` of a fact.

        Raises:
          BenchError: two have the same name.
        """
        named = [
            (f"{self.name}/{slug(row.key)}/{column}", cell)
            for table in self.tables
            for row in table.rows
            for (column, _), cell in zip(table.columns, row.cells, strict=True)
        ]
        named += [(f"{self.name}/{slug(fact.key)}", fact.text) for fact in self.facts]
        found: dict[str, str] = {}
        for name, text in named:
            if name in found:
                raise BenchError(f"two figures are named {name}; give one of them another key")
            found[name] = text
        return found


@dataclass(frozen=True, slots=True)
class Kept:
    """All that is kept: the benches, and the runs of each by part."""

    benches: tuple[Bench, ...]
    runs: Mapping[str, Mapping[str, Run]]

    def of(self, bench: str) -> list[tuple[Part, Run]]:
        """The parts of a bench that have a run, in the bench's order."""
        runs = self.runs.get(bench, {})
        return [(part, runs[part.name]) for part in self.bench(bench).parts if part.name in runs]

    def missing(self, bench: str) -> list[Part]:
        """The parts of a bench that have none."""
        runs = self.runs.get(bench, {})
        return [part for part in self.bench(bench).parts if part.name not in runs]

    def bench(self, name: str) -> Bench:
        """The bench of this name."""
        return next(bench for bench in self.benches if bench.name == name)


def clock(seconds: float) -> str:
    """Seconds that a clock measured."""
    return f"{seconds:,.2f} s" if seconds < 9.995 else f"{seconds:,.1f} s"


def step(seconds: float | None) -> str:
    """The time of a step: three digits or more."""
    if seconds is None:
        return NONE
    if seconds >= 9.995:
        return f"{seconds:,.1f} s"
    scaled = seconds * 1e3
    return f"{scaled:,.0f} ms" if scaled >= 99.95 else f"{scaled:.1f} ms" if scaled >= 9.995 else f"{scaled:.2f} ms"


def memory(count: float | None) -> str:
    """Bytes of memory."""
    if count is None:
        return NONE
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def sent(count: float) -> str:
    """Bytes that are sent."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def ratio(value: float | None, digits: int = 2) -> str:
    """One number over another."""
    return NONE if value is None else f"{value:.{digits}f}"


def grid(mesh: Sequence[Sequence[object]]) -> str:
    """A mesh by the sizes of its axes."""
    return "x".join(str(size) for _, size in mesh)
