"""Makes `checkpoint_models`, what these tests save, importable: pytest's importlib mode puts no folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
