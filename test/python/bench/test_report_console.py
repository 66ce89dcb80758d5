"""Console output in documentation: what is a dialogue, what differs from it, and how commands run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench._common import BenchError
from bench.report import console, texts
from bench.report.store import Run

_PAGE = """# A page

```
$ echo one
one
$ echo two \\
    three
two three
```

<!-- console: slow -->
```text
$ sleep 100
```

```python
x = "$ echo no command"
```
"""


def write(root: Path, text: str, name: str = "README.md") -> Path:
    path = root / name
    path.write_text(text)
    return path


def printed(root: Path, text: str) -> dict[str, str]:
    found = console.commands(write(root, text), root)
    return {command.text: output for command, output in console.run_all(found, root)}


def test_a_page_has_commands_with_their_lines_and_what_is_shown(tmp_path: Path) -> None:
    found = console.commands(write(tmp_path, _PAGE), tmp_path)
    assert [(c.page, c.line, c.text, c.shown, c.slow) for c in found] == [
        ("README.md", 4, "echo one", "one", False),
        ("README.md", 6, "echo two \\\n    three", "two three", False),
        ("README.md", 13, "sleep 100", "", True),
    ]
    assert console.slow_pages(tmp_path) == ["README.md"]


@pytest.mark.parametrize(("shown", "output"), [
    ("a 1\nb 2", "a 1\nb 2\n"),
    ("a  1\n b 2", "a 1\nb   2"),  # columns may be narrower
    ("a 1\n...\nd 4", "a 1\nb 2\nc 3\nd 4"),
    ("...\nd 4", "a 1\nd 4"),
    ("a 1\n...", "a 1\nd 4"),
    ("{p = 1, ...} end", "{p = 1, q = 2, r = 3} end"),
    ("f(...) -> ...\n}", "f(x) -> y\nz\n}"),
    ("planned in 3.12 s", "planned in 12.5 s"),
    ("done in 318 ms; ok", "done in 1 s; ok"),
    ("", ""),
])  # fmt: skip
def test_output_that_is_as_shown(shown: str, output: str) -> None:
    assert console.difference(shown, output) is None


@pytest.mark.parametrize(("shown", "output", "line"), [
    ("a 1\nb 2", "a 1\nb 3", "b 2"),
    ("a 1\nb 2", "a 1", "b 2"),
    ("a 1", "a 1\nb 2", "a 1"),
    ("a 1\nb 2", "a 1\nc 4\nb 2", "b 2"),  # what is left out is marked
    ("a 1\n...\nb 2", "a 1\nb 2", "b 2"),
    ("a 1\n...\nc 3\nd 5\ne", "a 1\nb 2\nc 3\nd 4\ne", "d 5"),
    ("step 318 ms", "step 321 ms", "step 318 ms"),  # predicted, no clock
    ("bytes in 245", "bytes in 246", "bytes in 245"),
    ("...\nb 2", "a 1\nb 2\nc 3", "b 2"),
    ("one\n{a, ...}\nlast", "one\n{a, b}\nother", "last"),
])  # fmt: skip
def test_the_first_line_that_differs_is_said(shown: str, output: str, line: str) -> None:
    assert console.difference(shown, output) == line


def test_commands_share_a_folder_that_has_the_repository_s_folders(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/in.txt").write_text("text\n")
    (tmp_path / "out.txt").write_text("mine\n")  # somebody tried the commands in the repository
    assert printed(tmp_path, "```\n$ cp docs/in.txt out.txt\n$ cat ./out.txt && ls missing\ntext\n...\n```\n") == {
        "cp docs/in.txt out.txt": "",
        "cat ./out.txt && ls missing": "text\nls: cannot access 'missing': No such file or directory",
    }
    assert (tmp_path / "out.txt").read_text() == "mine\n"


def test_tools_run_in_the_repository(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    tool = tmp_path / "tools/where"
    tool.write_text("#!/bin/sh\npwd\n")
    tool.chmod(0o755)
    found = printed(tmp_path, "```\n$ ./tools/where\n...\n$ pwd\n...\n```\n")
    assert found["./tools/where"] == str(tmp_path) != found["pwd"]


def test_a_file_that_a_page_shows_is_there_for_every_page(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    other = write(tmp_path, "```\n$ cat in.txt\none\n\ntwo\n```\n", "docs/other.md")
    assert printed(tmp_path, "```\n$ wc -l < in.txt\n3\n```\n") == {"wc -l < in.txt": "3"}
    assert list(console.run_all(console.commands(other, tmp_path), tmp_path)) == []
    write(tmp_path, "```\n$ cat in.txt\nother\n```\n")
    with pytest.raises(BenchError, match=r"another in\.txt is shown elsewhere"):
        console.shown_files(tmp_path)


def test_a_command_that_fails_must_show_it(tmp_path: Path) -> None:
    assert printed(tmp_path, "```\n$ echo no && false\nno\n```\n") == {"echo no && false": "no"}
    with pytest.raises(BenchError, match=r"README\.md:2: false: exit code 1"):
        printed(tmp_path, "```\n$ false\n```\n")


def test_slow_output_is_compared_with_what_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "<!-- console: slow -->\n```\n$ slow\na 1\n...\n```\n")

    def problems(outputs: dict[str, str]) -> list[str]:
        run = Run("README.md", "c" * 40, "", False, "", (), 1.0, 1.0, {}, {"outputs": outputs})
        return list(texts.check_console({"README.md": run} if outputs else {}, tmp_path))

    assert problems({"slow": "a 1\nb 2"}) == []
    (said,) = problems({})
    remedy = "run python -m bench.report --only console/README.md"
    assert said == f"README.md:3: no output of `slow` is kept; {remedy}"
    (said,) = problems({"slow": "a 2\nb 2"})
    assert said.startswith("README.md:3: at cccccccccc `slow` did not print 'a 1'")
