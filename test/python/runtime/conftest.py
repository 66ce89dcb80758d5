"""Makes the hand-written pipeline, and what starts processes, importable by the tests of the runtime."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
