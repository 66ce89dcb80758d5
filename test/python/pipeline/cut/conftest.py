"""Lets the tests of stages import their programs, and those of the tests of micro-batches and fragments."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parents[1] / "microbatch"), str(_HERE.parents[1] / "passes")]
