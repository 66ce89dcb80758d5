"""Memory limits and meshes as users write them."""

from __future__ import annotations

import pytest

from rhino.errors import RhinoError
from rhino.request import memory_bytes, mesh_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, 0), (4096, 4096), (40e9, 40_000_000_000), ("40e9", 40_000_000_000), ("40GiB", 40 << 30),
        ("0.5 MB", 500_000), ("12kib", 12 << 10), (" 7 B ", 7), ("1TiB", 1 << 40),
    ],
)  # fmt: skip
def test_memory(text: object, expected: int) -> None:
    assert memory_bytes(text) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "GiB", "-1", "40 gigs", "0", "0.1", "inf", "1e-3"])
def test_bad_memory(text: str) -> None:
    with pytest.raises(RhinoError, match="not a positive number of bytes"):
        memory_bytes(text)


def test_mesh() -> None:
    assert [mesh_text(m) for m in (None, "", (2, 4), [8], "2x4", "2,4", "2X4")] == [
        "",
        "",
        "2x4",
        "8",
        "2x4",
        "2x4",
        "2x4",
    ]


@pytest.mark.parametrize("mesh", ["2x", "x", (0, 8), (-2, 4), "2x4.5", ()])
def test_bad_mesh(mesh: object) -> None:
    with pytest.raises(RhinoError, match="not a list of positive sizes"):
        mesh_text(mesh)  # type: ignore[arg-type]
