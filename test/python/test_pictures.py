"""The pictures of the docs are those that today's plans give, small, and readable without seeing them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tools.pictures.__main__ import FOLDER, NAMES, draw
from tools.pictures.svg import Svg

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_that_of_the_plan_made_now(name: str) -> None:
    text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert text == draw(name), "run `python -m tools.pictures`, look at the picture, and commit it"
    assert len(text) < 20_000
    root = ET.fromstring(text)
    told = [root.find(f"{_SVG}{part}") for part in ("title", "desc")]
    assert all(part is not None and part.text for part in told)
    assert root.get("aria-labelledby") == " ".join(part.get("id", "") for part in told if part is not None)


def test_the_page_explains_the_shardings_that_the_mesh_shows() -> None:
    shown = set(re.findall(r"\{[^}]*\}(?=</text>)", (FOLDER / "mesh.svg").read_text(encoding="utf-8")))
    page = (FOLDER.parent / "concepts.md").read_text(encoding="utf-8")
    assert shown == set(re.findall(r"^- `(\{.*?\})` splits", page, re.MULTILINE))


def test_there_are_no_other_pictures() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)


def test_text_that_does_not_fit_its_box_is_an_error() -> None:
    svg = Svg("one", "One box", "A box.")
    svg.label(20, 20, 60, 20, "fits")
    with pytest.raises(ValueError, match="'much too long' takes 95"):
        svg.label(20, 20, 60, 20, "much too long")
    with pytest.raises(ValueError, match="and has 720"):
        svg.text(700, 20, "over the edge")
