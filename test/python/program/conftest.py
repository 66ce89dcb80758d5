"""Lets the tests of the program import the programs and builders of the tests of sharding."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "sharding"))  # for search_programs and hand_graphs
