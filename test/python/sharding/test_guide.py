"""The guide to the search shows what its example prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[3] / "docs/guide/search.md"


def test_the_example_prints_what_the_guide_says() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shown = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == " ".join(shown).split(), f"update docs/guide/search.md; it prints now:\n{done.stdout}"
