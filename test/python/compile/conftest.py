"""What the tests of `rhino.compile` need: the XLA GPU compiler, where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rhino.compile import _jax
from rhino.errors import RhinoError

sys.path.insert(0, str(Path(__file__).parent))  # for annotated_modules


@pytest.fixture(scope="session")
def gpu_compiler() -> None:
    """Skips where the GPU wheels of this jax are not installed."""
    try:
        _jax.check_gpu_wheels()
    except RhinoError as error:
        pytest.skip(str(error))
