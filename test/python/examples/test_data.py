"""The shipped text and its batches."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from examples.data import text


def test_the_shipped_text_is_the_novel() -> None:
    data = text.TEXT_PATH.read_bytes()
    assert data.startswith(b"PRIDE AND PREJUDICE\n\nBy Jane Austen\n")
    assert b"It is a truth universally acknowledged, that a single man in possession\nof a good fortune" in data
    assert len(data) > 200_000
    assert data.isascii()


def test_its_licence_is_stated_with_its_size() -> None:
    readme = text.TEXT_PATH.with_name("README.md").read_text()
    assert "public domain" in readme
    assert f"{text.TEXT_PATH.stat().st_size:,} bytes" in readme


def test_splits_cover_the_text_without_overlap() -> None:
    train, validation = text.load("train"), text.load("validation")
    assert bytes(train) + bytes(validation) == text.TEXT_PATH.read_bytes()
    assert len(train) > 8 * len(validation) > 0
    with pytest.raises(ValueError, match="no split 'test'"):
        text.load("test")


def test_batches_are_windows_of_the_text() -> None:
    data = text.load()
    tokens = text.batch_at(data, step=3, batch_size=5, seq_len=40, seed=0)["tokens"]
    assert tokens.shape == (5, 41)
    assert tokens.dtype == np.int32
    whole = bytes(data)
    for row in tokens:
        assert bytes(row.astype(np.uint8)) in whole


def test_every_window_can_be_drawn() -> None:
    data = np.arange(10, dtype=np.uint8)
    drawn = {int(batch["tokens"][0, 0]) for batch in islice(text.batches(data, 1, 7, seed=0), 64)}
    assert drawn == {0, 1, 2}


def test_batches_depend_on_seed_and_step_only() -> None:
    data = text.load()
    first = [batch["tokens"] for batch in islice(text.batches(data, 4, 16, seed=7), 4)]
    again = [batch["tokens"] for batch in islice(text.batches(data, 4, 16, seed=7, first_step=2), 2)]
    np.testing.assert_array_equal(first[2:], again)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], text.batch_at(data, 0, 4, 16, seed=8)["tokens"])


def test_a_text_too_short_for_the_sequence_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"abcdefghij")
    with pytest.raises(ValueError, match="sequences of 64 bytes need a longer text than 9 bytes"):
        text.batch_at(text.load(path=path), 0, 1, 64, seed=0)
