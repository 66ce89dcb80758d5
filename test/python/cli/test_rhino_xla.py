"""`rhino xla`: what it prints, writes and exits with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jaxlib
import pytest

from rhino.cli import xla
from rhino.cli.main import main
from rhino.xla.catalogue import CATALOGUE, behaviour


def test_it_says_where_a_behaviour_shows(capsys: pytest.CaptureFixture[str], gpu_compiler: None) -> None:
    assert main(["xla", "sums-merge", "--target", "cpu", "--target", "h100"]) == 0
    first, line, _, counts = capsys.readouterr().out.splitlines()
    assert first.startswith(f"jaxlib {jaxlib.__version__}; the catalogue was tried with 0.10.2")
    assert line == "sums-merge  shows on h100; absent on cpu"
    assert counts == "0 changed, 1 shows, 1 absent"


def test_what_changed_is_printed_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept, refused = behaviour("resharded-once"), behaviour("reshards-not-imported")
    assert kept.probe is not None and refused.probe is not None
    # XLA does not do the one, and refuses the other.
    found = [
        replace(kept, probe=replace(kept.probe, shows=lambda _: False)),
        replace(kept, name="never-refused", probe=replace(refused.probe, refused="another reason")),
    ]
    monkeypatch.setattr(xla, "CATALOGUE", found)
    out = tmp_path / "found.json"
    assert main(["xla", "--target", "cpu", "--json", str(out)]) == 1
    text = capsys.readouterr().out
    assert "resharded-once  changed on cpu\n                was: A value that several read" in text
    assert "never-refused   changed on cpu" in text and "cpu: XLA cannot compile the module for cpu" in text
    written = json.loads(out.read_text())
    assert written["jaxlib"] == jaxlib.__version__
    assert [(row["name"], row["target"], row["status"]) for row in written["behaviours"]] == [
        ("resharded-once", "cpu", "changed"),
        ("never-refused", "cpu", "changed"),
    ]


def test_the_list_compiles_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "_rows", None)
    assert main(["xla", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CATALOGUE)


def test_a_name_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xla", "sum-merge"]) == 1
    assert capsys.readouterr().err == (
        "rhino xla: error: no behaviour of XLA is named 'sum-merge'; did you mean sums-merge?\n"
    )
