"""What the tests of `rhino.compile` import from here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for annotated_modules
