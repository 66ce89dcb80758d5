"""Console output that documentation shows: `python -m bench.report.console PAGE --json -` runs a page's slow commands.

A fenced block that begins with `$ ` is a dialogue: commands, each with what it prints. `<!-- console: slow -->` above a
block says that its commands take more than about 20 s of CPU time; their output is kept with the results. In what is
shown `...` stands for anything that is left out, spaces may be others, and seconds in "in 3.1 s" are compared by form.
`$ cat FILE`, without a folder, shows a file that the commands of all pages then have.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench._common import ROOT, SCHEMA, BenchError, machine, main, note

_BLOCK = re.compile(r"(?P<slow>^<!-- console: slow -->\n\n?)?^```\w*\n(?P<text>\$ .*?)^```$", re.MULTILINE | re.DOTALL)
_CAT = re.compile(r"cat ([\w.-]+)")
# What a clock says, as `rhino` and the scripts print it. Predicted seconds are never written so.
_CLOCK = re.compile(r"\bin \d+(?:\.\d+)? (?:ms|s|min)\b")
_LEFT_OUT = "..."


@dataclass(frozen=True, slots=True)
class Command:
    """A command and what is shown of its output; the page, relative to the repository, and the line it stands on."""

    page: str
    line: int
    text: str
    shown: str
    slow: bool


def pages(root: Path = ROOT) -> list[Path]:
    """All pages of documentation but what is generated from results."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.md")]
    return sorted(page for page in found if page != root / "docs" / "results.md")


def commands(page: Path, root: Path = ROOT) -> list[Command]:
    """The commands that a page shows, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("text")) + 1
        for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            # A command goes on over lines that end with a backslash.
            command = re.match(r"(?:.*\\\n)*.*", part)
            assert command is not None  # it matches the empty text
            shown = part[command.end() :].strip("\n")
            found.append(Command(str(page.relative_to(root)), line, command[0], shown, block["slow"] is not None))
            line += part.count("\n")
    return found


def shown_files(root: Path = ROOT) -> dict[str, str]:
    """The files that pages show with `cat`. Raises BenchError where two of one name differ."""
    found: dict[str, str] = {}
    for page in pages(root):
        for command in commands(page, root):
            name = file_shown(command)
            if name is None:
                continue
            if found.setdefault(name, command.shown) != command.shown:
                raise BenchError(
                    f"{command.page}:{command.line}: another {name} is shown elsewhere; give it another name"
                )
    return found


def file_shown(command: Command) -> str | None:
    """The file whose text a command shows; None for other commands."""
    match = _CAT.fullmatch(command.text)
    return match[1] if match else None


def difference(shown: str, output: str) -> str | None:
    """The first shown line that the output has not, at its place; None where the whole output is as shown."""
    pieces = shown.split(_LEFT_OUT)
    at = 0
    for index, piece in enumerate(pieces):
        first, last = index == 0, index == len(pieces) - 1
        # What comes earliest leaves the most for the pieces after it, so nothing need be tried twice.
        found = _find(piece, output, at, first, last)
        if found is None:
            before = _LEFT_OUT.join([*pieces[:index], ""]).count("\n")
            lines = piece.split("\n")
            fitting = (n for n in range(len(lines) - 1, 0, -1) if _find("\n".join(lines[:n]), output, at, first, False))
            return shown.split("\n")[before + next(fitting, 0)]
        at = found.end()
    return None


def _find(piece: str, output: str, start: int, first: bool, last: bool) -> re.Match[str] | None:
    """Where a piece between two gaps is, at or after `start`; the first is at the start, the last at the end."""
    words = [re.escape(word) for word in _CLOCK.sub("\0", piece).split()]
    pattern = r"\s+".join(words).replace("\0", _CLOCK.pattern)
    if words and not first and piece[0].isspace():
        pattern = r"\s+" + pattern
    if words and not last and piece[-1].isspace():
        pattern += r"\s+"
    if last:
        pattern += r"\s*\Z" if words or first else ""
    made = re.compile(pattern)
    return made.match(output, start) if first else made.search(output, start)


def run_all(asked: Sequence[Command], root: Path = ROOT, timeout_s: float = 1800.0) -> Iterator[tuple[Command, str]]:
    """Run commands in a folder that has the repository's folders and the shown files; what each printed, errors too.

    The repository's tools run in the repository, whose virtual environment they look after.

    Raises:
      BenchError: a command took too long, or failed though no output of it is shown.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    env |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}", "PYTHONUTF8": "1"}
    env.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry in root.iterdir():
            if entry.is_dir() and not entry.name.startswith(".") and entry.name != "out":
                (folder / entry.name).symlink_to(entry)
        for file, text in shown_files(root).items():
            (folder / file).write_text(text + "\n", encoding="utf-8")
        for command in asked:
            if file_shown(command) is not None:
                continue
            where = f"{command.page}:{command.line}: {command.text}"
            note(where)
            try:
                done = subprocess.run(
                    ["bash", "-c", command.text], cwd=root if command.text.startswith("./tools/") else folder, env=env,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, errors="replace",
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise BenchError(f"{where}: not done after {timeout_s:.0f} s") from None
            if done.returncode != 0 and not command.shown:
                raise BenchError(f"{where}: exit code {done.returncode}\n{done.stdout[-2000:]}")
            yield command, "\n".join(line.rstrip() for line in done.stdout.split("\n")).strip("\n")


def slow_pages(root: Path = ROOT) -> list[str]:
    """Pages that show the output of slow commands."""
    return [
        str(page.relative_to(root)) for page in pages(root) if any(command.slow for command in commands(page, root))
    ]


def body() -> None:
    """Run the slow commands of a page and print what they printed, as a bench prints its record."""
    p = argparse.ArgumentParser(prog="python -m bench.report.console", description=(__doc__ or "").splitlines()[0])
    p.add_argument("page", help="relative to the repository")
    p.add_argument("--json", choices=("-",), default="-", help="where to: standard output, the only choice")
    args = p.parse_args()
    # The quick ones run too: they make files that the slow ones read.
    outputs = {command.text: output for command, output in run_all(commands(ROOT / args.page)) if command.slow}
    command = ["python", "-m", "bench.report.console", *sys.argv[1:]]
    record = {"schema": SCHEMA, "bench": "console", "command": command, "machine": machine()}
    print(json.dumps({**record, "results": {"outputs": outputs}}))


if __name__ == "__main__":
    main(body)
