"""`python -m tools.pictures` writes docs/pictures/*.svg; with `--check` it says which are not of today's plans."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs/pictures"
NAMES = ("mesh", "cone", "strided", "stage", "schedule", "resharding")


def draw(name: str) -> str:
    """The picture of that name, as SVG."""
    text: str = import_module(f"tools.pictures.{name}").draw()
    return text


def main() -> int:
    """Write the pictures, or compare them; the exit code."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing is computed, only traced
    stale = []
    for name in NAMES:
        text, path = draw(name), FOLDER / f"{name}.svg"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    print(*stale, sep="\n", end="\n" if stale else "")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
