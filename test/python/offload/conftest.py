"""Lets these tests import the steps of the tests of micro-batches."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "microbatch"))
