"""Lets the executable tests import the programs of the tests of sharding, and their own."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for pipeline_steps
sys.path.insert(0, str(Path(__file__).parent.parent / "sharding"))  # for search_programs
sys.path.insert(0, str(Path(__file__).parent.parent / "microbatch"))  # for ghost
