"""Lets these tests find the programs beside them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def found() -> str:
    """Programs that were wrong when the differential test found them, as one."""
    return (Path(__file__).parent / "found.mlir").read_text(encoding="utf-8")
