"""Makes the hand-written pipeline, and what starts processes, importable by the tests of the runtime."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


@pytest.fixture
def only_new_objects() -> Iterator[None]:
    """What was made before is not looked at by `gc.collect`, which takes a second in a worker that ran other tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
