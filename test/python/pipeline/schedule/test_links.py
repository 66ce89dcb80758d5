"""Links in time: against a simulation that starts anew at every moment, and what holds of any transfers."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.pipeline.schedule.links import Links


class Sent(NamedTuple):
    at: int
    lane: tuple[int, int]
    links: tuple[str, ...]
    seconds: int


SENT = st.builds(
    Sent,
    st.integers(0, 12),
    st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 0)]),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).map(tuple),
    st.integers(0, 9),
)


def played(sent: list[Sent]) -> list[tuple[int, float, float]]:
    """Which, from when, until when; in the order of arrival."""
    links: Links[int] = Links()
    found = []
    for index, one in [*enumerate(sent), (-1, None)]:
        while links.next_end_s() <= (one.at if one else inf) and links.next_end_s() < inf:
            end = links.next_end_s()
            transfer = links.arrive()
            found.append((transfer.what, transfer.start_s, end))
        if one:
            links.send(index, one.lane, one.links, float(one.seconds), float(one.at))
    return found


def expected(sent: list[Sent]) -> dict[int, tuple[Fraction, Fraction]]:
    """From when until when, each: the heads of all lanes, from one moment at which anything changes to the next."""
    left = {index: Fraction(one.seconds) for index, one in enumerate(sent)}
    lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
    starts: dict[int, Fraction] = {}
    ends: dict[int, Fraction] = {}
    now, coming = Fraction(0), list(range(len(sent)))
    while coming or any(lanes.values()):
        while coming and sent[coming[0]].at <= now:
            index = coming.pop(0)
            lanes[sent[index].lane].append(index)
        heads = [lane[0] for lane in lanes.values() if lane]
        for index in heads:
            starts.setdefault(index, now)
        on = {link: sum(link in sent[index].links for index in heads) for link in "abcd"}
        rates = {index: Fraction(1, max(on[link] for link in sent[index].links)) for index in heads}
        moments = [now + left[index] / rates[index] for index in heads]
        after = min([*moments, *(Fraction(sent[index].at) for index in coming[:1])])
        for index in heads:
            left[index] -= rates[index] * (after - now)
            if left[index] == 0:
                ends[index] = after
                lanes[sent[index].lane].remove(index)
        now = after
    return {index: (starts[index], ends[index]) for index in starts}


@settings(max_examples=300, deadline=None)
@given(st.lists(SENT, max_size=10).map(lambda sent: sorted(sent, key=lambda one: one.at)))
def test_transfers_of_any_lanes_and_links(sent: list[Sent]) -> None:
    found = played(sent)
    assert sorted(index for index, _, _ in found) == list(range(len(sent)))
    assert [end for _, _, end in found] == sorted(end for _, _, end in found)
    wanted = expected(sent)
    for index, start, end in found:
        assert (start, end) == pytest.approx([float(each) for each in wanted[index]], abs=1e-9)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_a_link_is_never_idle_while_something_waits_for_it(seconds: list[int]) -> None:
    found = played([Sent(0, (0, index), ("a",), each) for index, each in enumerate(seconds)])
    assert found[-1][2] == pytest.approx(sum(seconds))


def test_a_lone_transfer_takes_what_it_takes_to_the_last_bit() -> None:
    links: Links[str] = Links()
    links.send("x", (0, 1), ("a", "b"), 0.1, 0.7)
    assert links.next_end_s() == 0.7 + 0.1
    assert links.arrive().what == "x" and links.next_end_s() == inf
