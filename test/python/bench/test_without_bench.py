"""bench.without: it runs, and what it leaves out is left out."""

from __future__ import annotations

import json
import sys
from unittest.mock import patch

import pytest

from bench._common import run
from bench._without_plan import PARTS
from bench.without import CASES


def test_without_runs() -> None:
    ran = run([sys.executable, "-m", "bench.without", "--quick", "--json", "-"], timeout_s=300)
    (row,) = json.loads(ran.stdout)["results"]["cases"]
    assert row["time"] <= 1
    assert row["memory"] == row["with"]["predicted"]["peak_bytes"] / row["without"]["predicted"]["peak_bytes"]
    assert 0.85 < row["peak_ratio"] < 1.15


@pytest.mark.parametrize("part", PARTS)
def test_what_stands_in_for_a_part_is_where_the_search_looks(part: str) -> None:
    for name, _ in PARTS[part]:
        with patch(name):  # raises where there is none
            pass
    assert any(case.part == part for case in CASES)
