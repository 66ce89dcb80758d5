"""Measures with the benches, keeps the results with the commit, and writes docs/results.md and the texts that quote it.

    python -m bench.report [--only BENCH[/PART] ...] [--resume]   measure, keep, write
    python -m bench.report --list [SECTION ...]                   what is kept; of sections, the figures by name
    python -m bench.report --write | --check                      only write texts, or say what is wrong with them

Each part of a bench runs in a process of its own, one after the other, and is kept as soon as it is done: a run that
was stopped goes on with --resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from bench._common import ROOT, BenchError, Table, main
from bench.report import console, measure, page, texts
from bench.report.store import FOLDER, Commit, current
from bench.report.tables import Kept


def check(results: Kept, root: Path = ROOT, written: Path = page.PAGE) -> Iterator[str]:
    """All that is wrong with the texts, each with its place and the remedy."""
    remedy = "run python -m bench.report --write"
    if not written.exists() or written.read_text(encoding="utf-8") != page.render(results):
        yield f"{written.relative_to(root)}: it is not what the results give; {remedy}"
    figures = page.figures(results)
    for path in console.pages(root):
        name, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
        yield from texts.check_quotes(name, text, figures)
        if name not in texts.HISTORY:
            yield from texts.loose_numbers(name, text)
    yield from texts.check_console(results.runs["console"], root)
    for bench in results.benches:
        known = {part.name for part in bench.parts}
        for part in results.runs[bench.name]:
            if part not in known:
                yield f"bench/results/{bench.name}.json: the bench has no part {part}; delete its line"
    names = {bench.name for bench in results.benches}
    for file in sorted(FOLDER.glob("*.json")):
        if file.stem not in names:
            yield f"bench/results/{file.name}: there is no such bench; delete it"


def write(results: Kept, root: Path = ROOT, written: Path = page.PAGE) -> list[str]:
    """Write the page of results and every quoted figure; the pages that changed."""
    figures = page.figures(results)
    texts_now = {path: texts.updated(path.read_text(encoding="utf-8"), figures) for path in console.pages(root)}
    changed = []
    for path, text in {written: page.render(results), **texts_now}.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(str(path.relative_to(root)))
    return changed


def listing(results: Kept, now: Commit) -> Table:
    """What is kept of each part, of which commit, when it was made, and how long it took."""
    rows = []
    for bench in results.benches:
        for part in bench.parts:
            run = results.runs[bench.name].get(part.name)
            if run is None:
                rows.append((f"{bench.name}/{part.name}", "not run", "", "", ""))
                continue
            age = "now" if run.commit == now.hash else "older"
            commit = f"{run.commit[:10]} {age}{', changed' if run.dirty else ''}"
            rows.append((f"{bench.name}/{part.name}", commit, run.date[:16], f"{run.wall_s:,.0f}", f"{run.cpu_s:,.0f}"))
    title = f"Results; what is measured was last changed by {now.hash[:10]}{', and since' if now.dirty else ''}"
    return Table(title, ("part", "commit", "begun (UTC)", "wall s", "CPU s"), tuple(rows))


def figures_of(results: Kept, wanted: list[str]) -> Table:
    """The figures of some sections, with the names by which texts quote them."""
    known = {section.name: section for section in page.sections(results)}
    for name in wanted:
        if name not in known:
            raise BenchError(f"no section is named {name}; there are {', '.join(known)}")
    rows = tuple((name, text) for section in wanted for name, text in known[section].figures().items())
    return Table("Figures, quoted as <!-- result NAME -->TEXT<!-- /result -->", ("name", "text"), rows)


def body() -> None:
    """Do what the options say."""
    p = argparse.ArgumentParser(
        prog="python -m bench.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--only", nargs="+", metavar="NAME", help="measure these: BENCH, or BENCH/TEXT for parts with a text"
    )
    p.add_argument("--resume", action="store_true", help="skip what is kept of this commit already")
    modes = p.add_mutually_exclusive_group()
    modes.add_argument(
        "--list", nargs="*", metavar="SECTION", help="list parts, or the figures of sections; no measuring"
    )
    modes.add_argument("--write", action="store_true", help="write docs/results.md and quoted figures; no measuring")
    modes.add_argument("--check", action="store_true", help="say what is wrong with the texts; no measuring")
    args = p.parse_args()
    results = page.kept()
    if args.list is not None:
        print(figures_of(results, args.list) if args.list else listing(results, current()))
        return
    if args.check:
        problems = list(check(results))
        if problems:
            raise BenchError("\n".join([f"{len(problems)} places of the texts are not as the results:", *problems]))
        print("every number is a result")
        return
    failed: list[str] = []
    try:
        if not args.write:
            failed = measure.measure_all(measure.chosen(results.benches, args.only), current, args.resume)
    finally:  # what was kept before somebody interrupts is shown, too
        changed = write(page.kept())
        print(f"written: {', '.join(changed)}" if changed else "the texts are as the results")
    if failed:
        raise BenchError(f"not measured: {', '.join(failed)}; what was kept of them before is still there")


if __name__ == "__main__":
    main(body)
