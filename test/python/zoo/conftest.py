"""Makes `zoo` importable as a package: pytest's importlib mode puts no folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
