"""Lets the tests of passes import their programs, and those of the tests of sharding."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "sharding")]  # for strided_programs, and search_programs
