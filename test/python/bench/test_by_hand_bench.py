"""bench.by_hand: it runs, and says when a wish is faster than what was found."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import pytest

from bench._by_hand_wishes import LATE, timed
from bench._common import run
from bench.by_hand import judge, tables


def test_by_hand_runs() -> None:
    wishes = ["--wish", "--mesh 2x4", "expert data"]
    ran = run([sys.executable, "-m", "bench.by_hand", "--quick", *wishes, "--json", "-"], timeout_s=300)
    (row,) = json.loads(ran.stdout)["results"]["cases"]
    assert [wish["wish"] for wish in row["wishes"]] == ["--mesh 2x4", "expert data"]
    assert all(wish["step_time_s"] > 0 and wish["peak_bytes"] > 0 for wish in row["wishes"])
    assert row["kept"]
    assert row["default"]["step_time_s"] <= min(wish["step_time_s"] for wish in row["wishes"])


def test_a_wish_ends_with_the_time() -> None:
    def endless() -> dict[str, object]:
        while True:
            with suppress(Exception):
                sum(range(1000))

    assert timed(endless, 0.05)["why"] == LATE
    assert timed(lambda: {"plan": "8"}, 60.0)["plan"] == "8"


def wished(*seconds: float) -> list[dict[str, object]]:
    return [{"wish": f"w{i}", "plan": "8", "step_time_s": s, "peak_bytes": 1} for i, s in enumerate(seconds)]


@pytest.mark.parametrize(
    ("level", "wish_s", "kept"), [("O1", 0.99, True), ("O1", 0.97, False), ("O2", 0.99, False), ("O2", 0.999, True)]
)
def test_a_faster_wish_is_told(level: str, wish_s: float, kept: bool) -> None:
    default = {"plan": "8", "step_time_s": 1.0, "peak_bytes": 1, "seconds": 1.0}
    found = {"default": default, "wishes": [*wished(2.0, wish_s), {"wish": "other", "why": "does not fit"}]}
    judged = judge(found, level)
    assert (judged["best_wish"], judged["kept"]) == ("w1", kept)
    assert judged["faster"] == pytest.approx(1 / wish_s - 1)
    first, better = tables([{"case": "c", "level": level, **judged, **found}])
    assert first.rows[0][-1] == ("yes" if kept else "NO")
    assert [row[1] for row in better.rows] == ["w1"]


def test_a_wish_that_fits_where_nothing_was_found_is_told() -> None:
    found = {"default": {"why": "nothing fits", "seconds": 1.0}, "wishes": wished(2.0)}
    assert not judge(found, "O1")["kept"]
    assert judge({**found, "wishes": []}, "O1")["kept"]
