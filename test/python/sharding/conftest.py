"""Lets the tests of the search import their programs and hand-made graphs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for search_programs and hand_graphs
