"""The documentation is true: its links lead somewhere, and its Python runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report import console
from bench.report.__main__ import check
from bench.report.page import kept

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_relative_links_lead_somewhere() -> None:
    broken = []
    count = 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                count += 1
                if not (page.parent / target).exists():
                    broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert count > 5
    assert not broken, "\n".join(broken)


def test_commands_of_the_readme_exist() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    modules = set(re.findall(r"python -m ((?:examples|bench)\.\w+)", text))
    assert {"examples.export", "bench.report"} <= modules
    paths = {name: ROOT / name.replace(".", "/") for name in sorted(modules)}
    missing = [n for n, p in paths.items() if not p.with_suffix(".py").is_file() and not (p / "__main__.py").is_file()]
    assert not missing, ", ".join(missing)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_is_valid(page: Path) -> None:
    for number, block in enumerate(python_blocks(page)):
        compile(block, f"{page.name}, block {number + 1}", "exec")


@pytest.mark.parametrize("name", ["kernels", "manual"])
def test_guides_run_and_print_what_they_say(name: str) -> None:
    page = ROOT / f"docs/guide/{name}.md"
    program = "\n".join(python_blocks(page))
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert shown in done.stdout


DIALOGUES = {
    str(path.relative_to(ROOT)): [command for command in console.commands(path) if not command.slow]
    for path in console.pages()
}


@pytest.mark.parametrize("name", [name for name, commands in DIALOGUES.items() if commands])
def test_commands_print_what_is_shown(name: str) -> None:
    wrong = []
    for command, output in console.run_all(DIALOGUES[name], timeout_s=300):
        line = console.difference(command.shown, output) if command.shown else None
        if line is not None:
            wrong.append(f"{name}:{command.line}: `{command.text}` does not print {line!r}, but:\n{output}")
    assert not wrong, "\n\n".join(wrong)


def test_numbers_are_results() -> None:
    problems = list(check(kept()))
    assert not problems, "\n".join(problems)


def test_the_readme_is_read_at_one_sitting() -> None:
    """At most 120 lines of 130 columns, and sentences of fewer than 18 words in the average."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 120
    assert not [line for line in lines if len(line) > 130]
    prose = re.sub(r"^```.*?^```$|^\|.*?$|^#.*?$|<!--.*?-->|\]\([^)]*\)", "\n", text, flags=re.MULTILINE | re.DOTALL)
    sentences = [one.split() for one in re.split(r"[.?!:](?:\*\*)?\s|\n\s*\n|^- ", prose, flags=re.MULTILINE)]
    words = [len(one) for one in sentences if len(one) > 1]
    assert len(words) > 30
    assert sum(words) / len(words) < 18


def test_getting_started_runs() -> None:
    program = next(
        block for block in python_blocks(ROOT / "docs/guide/getting-started.md") if "def train_step" in block
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Plan for local" in done.stdout
    first, second, third = map(float, done.stdout.split()[-3:])
    assert first > second > third > 0
