"""One trip of a loop, or a program around its loops, on two streams, computing and sending."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhino.sharding.trips import Beside, Stream, TripPart, trip_seconds

COMPUTES, APART, WAITS, LOOPS = Stream


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
    assert trip_seconds(placed(*parts), map(Beside, others)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("parts", "others", "seconds"),
    [
        pytest.param([(COMPUTES, 3.0), (COMPUTES, 3.0)], [Beside(2.0, due=0.6)], 6.0, id="a gather beside the first"),
        pytest.param([(COMPUTES, 3.0), (COMPUTES, 3.0)], [Beside(4.0, due=0.6)], 7.0, id="a gather that takes longer"),
        pytest.param([(COMPUTES, 3.0)], [Beside(2.0, due=-0.4)], 5.0, id="a gather for what is first"),
        # The second one waits for the first.
        pytest.param(
            [(COMPUTES, 3.0), (COMPUTES, 3.0)], [Beside(2.0, due=-0.4), Beside(4.0, due=0.6)], 9.0, id="gathers"
        ),
        pytest.param([(COMPUTES, 3.0), (COMPUTES, 3.0)], [Beside(2.0, ready=0.4)], 6.0, id="a sum beside what follows"),
        pytest.param([(COMPUTES, 3.0), (COMPUTES, 3.0)], [Beside(4.0, ready=0.4)], 7.0, id="a sum that takes longer"),
        pytest.param([(COMPUTES, 3.0)], [Beside(2.0, ready=0.4)], 5.0, id="a sum of what is last"),
        # What is due goes first, though it is shorter.
        pytest.param([(COMPUTES, 3.0)] * 3, [Beside(9.0), Beside(3.0, due=0.6)], 12.0, id="what is due first"),
        pytest.param([(COMPUTES, 3.0), (LOOPS, 0.0), (COMPUTES, 3.0)], [Beside(5.0)], 8.0, id="nothing beside a loop"),
        pytest.param([(LOOPS, 0.0), (COMPUTES, 3.0)], [Beside(2.0)], 3.0, id="behind a loop"),
    ],
)
def test_where_in_a_trip_a_collective_can_be(
    parts: list[tuple[Stream, float]], others: list[Beside], seconds: float
) -> None:
    assert trip_seconds(placed(*parts), others) == pytest.approx(seconds)


_SECONDS = st.integers(1, 50).map(float)
_PLACES = st.integers(0, 12).map(lambda at: at - 0.5)
_BESIDE = st.builds(
    lambda seconds, ends: Beside(seconds, *ends),
    _SECONDS,
    st.one_of(
        st.just((-inf, inf)), _PLACES.map(lambda due: (-inf, due)), _PLACES.map(lambda ready: (ready, inf)),
        st.tuples(_PLACES, _PLACES).map(lambda ends: (min(ends), max(ends))),
    ),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(list(Stream)), _SECONDS), max_size=12), st.lists(_BESIDE, max_size=8))
def test_no_trip_is_faster_than_a_stream_or_slower_than_both(
    drawn: list[tuple[Stream, float]], others: list[Beside]
) -> None:
    parts = [(stream, 0.0 if stream == LOOPS else s) for stream, s in drawn]
    found = trip_seconds(placed(*parts), others)
    computes = sum(s for stream, s in parts if stream != WAITS)
    sends = sum(s for stream, s in parts if stream == WAITS) + sum(one.seconds for one in others)
    in_order = sum(s for stream, s in parts if stream != APART)
    assert max(computes, sends, in_order) - 1e-9 <= found <= computes + sends + 1e-9
    # Nothing that is sent besides makes it faster, and all by itself there is nothing in the way.
    assert found >= trip_seconds(placed(*parts), []) - 1e-9
