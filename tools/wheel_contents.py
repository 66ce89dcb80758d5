"""`python wheel_contents.py ROOT FILE.whl`: exits 1 with the difference unless the wheel is the library, all and alone.

Owns what a wheel should hold. Standard library only, so that it runs in any environment.
"""

from __future__ import annotations

import sys
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile


def expected(root: Path) -> set[str]:
    """The name in the wheel of every file of the library, data included."""
    return {
        path.relative_to(root / "python").as_posix()
        for path in (root / "python/rhino").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def differences(root: Path, wheel: Path) -> list[str]:
    """What is wrong with a wheel, a line each."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name for name in sorted(names) if name.endswith(".dist-info/METADATA")).removesuffix("METADATA")
        metadata = message_from_bytes(archive.read(f"{info}METADATA"))
        scripts = archive.read(f"{info}entry_points.txt").decode()
    held = {name for name in names if not name.startswith(info)}
    wanted = expected(root)
    wrong = [f"{name} is missing; is its folder a package, or its kind in package-data of pyproject.toml?"
             for name in sorted(wanted - held)]  # fmt: skip
    wrong += [f"{name} should not be in it" for name in sorted(held - wanted)]
    if metadata["Version"] != project["version"]:
        wrong.append(f"its version is {metadata['Version']}, and pyproject.toml has {project['version']}")
    wrong += [f"it has no command {name}" for name in project["scripts"] if f"{name} = " not in scripts]
    if not any(name.startswith(info) and name.endswith("LICENSE") for name in names):
        wrong.append("it has no LICENSE")
    return wrong


if __name__ == "__main__":
    found = differences(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(found))
    sys.exit(bool(found))
