"""What is installed: every folder of the library is a package, one version, and a wheel that lacks a file is refused.

`./tools/wheel` builds and tries a real one, which takes longer than tests of every day may.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import rhino

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "python/rhino"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_every_folder_with_python_is_a_package() -> None:
    folders = {path.parent for path in LIBRARY.rglob("*.py")}
    assert len(folders) > 20
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_the_version_is_that_of_pyproject() -> None:
    assert rhino.__version__ == VERSION


def test_the_version_is_written_in_one_place() -> None:
    source = LIBRARY.rglob("*.py")
    written = [p.name for p in source if re.search(rf"\b{re.escape(VERSION)}\b", p.read_text(encoding="utf-8"))]
    assert written == []


@pytest.mark.parametrize("command", ["rhino.cli.main", "rhino.cli.opt"])
def test_commands_say_the_version(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", command, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0] == f"rhino {VERSION}"


def make_wheel(path: Path, leave_out: str = "", add: str = "", version: str = VERSION) -> Path:
    """A file as pip would make it, but for one name."""
    names = {
        str(file.relative_to(LIBRARY.parent)): file
        for file in LIBRARY.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    info = "rhino_jax-0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names.keys() - {leave_out}:
            archive.writestr(name, "")
        for name in filter(None, [add, f"{info}/licenses/LICENSE"]):
            archive.writestr(name, "")
        archive.writestr(f"{info}/METADATA", f"Name: rhino-jax\nVersion: {version}\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nrhino = a:b\nrhino-opt = c:d\n")
    return path


def check(wheel: Path) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "tools/wheel_contents.py"), str(ROOT), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.returncode, done.stdout.strip()


def test_a_whole_wheel_is_accepted(tmp_path: Path) -> None:
    assert check(make_wheel(tmp_path / "a.whl")) == (0, "")


@pytest.mark.parametrize(
    "name", ["rhino/py.typed", "rhino/report/page.css", "rhino/passes/plan/__init__.py", "rhino/dialect/sdy.py"]
)
def test_a_wheel_without_a_file_is_refused(tmp_path: Path, name: str) -> None:
    code, said = check(make_wheel(tmp_path / "a.whl", leave_out=name))
    assert code == 1
    assert said.startswith(f"{name} is missing")


def test_a_wheel_with_tests_or_of_another_version_is_refused(tmp_path: Path) -> None:
    code, said = check(make_wheel(tmp_path / "a.whl", add="test/python/conftest.py", version="9"))
    assert code == 1
    assert said.splitlines() == [
        "test/python/conftest.py should not be in it",
        f"its version is 9, and pyproject.toml has {VERSION}",
    ]


def test_the_changelog_is_about_this_version() -> None:
    """It begins with what is not released, and the last release is not later than pyproject's version."""
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    released = [re.fullmatch(r"(\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d", heading) for heading in headings[1:]]
    assert all(released), headings
    assert not released or released[0][1] == VERSION
