"""Which backward operations other stages wait for, and which can be delayed."""

from __future__ import annotations

from rhino.pipeline.program import awaited_ops, delayed_ops

# Stage 1 runs 10 to 13 and sends what 12 makes; stage 0 runs 20 and 21, and sends nothing. 5 is of another phase.
READS = {10: [5], 11: [10], 12: [10], 13: [12], 20: [12], 21: [20]}
STAGE_OF = {10: 1, 11: 1, 12: 1, 13: 1, 20: 0, 21: 0}


def test_what_is_sent_is_awaited_with_all_it_reads_in_its_phase() -> None:
    assert awaited_ops(READS, [12]) == {10, 12}


def test_what_is_sent_by_another_phase_is_not_awaited_in_this_one() -> None:
    assert awaited_ops(READS, [5]) == frozenset()


def test_what_no_stage_waits_for_is_delayed() -> None:
    assert delayed_ops(STAGE_OF, READS, [12]) == {11, 13}


def test_a_stage_that_sends_nothing_delays_nothing() -> None:
    assert delayed_ops(STAGE_OF, READS, []) == frozenset()
    assert delayed_ops(STAGE_OF, READS, [12, 20]) == {11, 13, 21}
