"""One trip of a loop on two streams, computing and sending."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhino.sharding.trips import Stream, TripPart, trip_seconds

COMPUTES, APART, WAITS = Stream


def placed(*parts: tuple[Stream, float]) -> list[TripPart]:
    return [TripPart(at, stream, seconds) for at, (stream, seconds) in enumerate(parts)]


@pytest.mark.parametrize(
    ("parts", "others", "seconds"),
    [
        pytest.param([(COMPUTES, 3.0)], [2.0], 3.0, id="hidden"),
        pytest.param([(COMPUTES, 3.0)], [2.0, 2.0], 4.0, id="more than is computed"),
        pytest.param([(COMPUTES, 3.0), (WAITS, 1.0), (COMPUTES, 3.0)], [], 7.0, id="waits"),
        pytest.param([(COMPUTES, 3.0), (WAITS, 1.0), (COMPUTES, 3.0)], [3.0, 3.0], 7.0, id="beside each part"),
        # What is longer than one part holds up what the next one waits for.
        pytest.param([(COMPUTES, 3.0), (WAITS, 1.0), (COMPUTES, 3.0)], [5.0], 9.0, id="in the way"),
        pytest.param([(COMPUTES, 3.0), (APART, 2.0), (WAITS, 1.0), (COMPUTES, 3.0)], [5.0], 9.0, id="apart meanwhile"),
        pytest.param([(APART, 2.0), (WAITS, 1.0)], [], 2.0, id="a weight's gradient beside a sum"),
        # But one that is only made behind the sum is not beside it.
        pytest.param([(WAITS, 1.0), (APART, 2.0)], [], 3.0, id="later"),
        pytest.param([], [2.0, 1.0], 3.0, id="nothing computed"),
    ],
)
def test_how_long_a_trip_takes(parts: list[tuple[Stream, float]], others: list[float], seconds: float) -> None:
    assert trip_seconds(placed(*parts), others) == pytest.approx(seconds)


_SECONDS = st.integers(1, 50).map(float)


@given(st.lists(st.tuples(st.sampled_from(list(Stream)), _SECONDS), max_size=12), st.lists(_SECONDS, max_size=8))
def test_no_trip_is_faster_than_a_stream_or_slower_than_both(
    parts: list[tuple[Stream, float]], others: list[float]
) -> None:
    found = trip_seconds(placed(*parts), others)
    computes = sum(s for stream, s in parts if stream != WAITS)
    sends = sum(s for stream, s in parts if stream == WAITS) + sum(others)
    in_order = sum(s for stream, s in parts if stream != APART)
    assert max(computes, sends, in_order) - 1e-9 <= found <= computes + sends + 1e-9
    # Nothing that is sent besides makes it faster, and all by itself there is nothing in the way.
    assert found >= trip_seconds(placed(*parts), []) - 1e-9
