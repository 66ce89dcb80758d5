"""Closed forms of the strategies, and programs of one unit that take as long."""

from __future__ import annotations

from fractions import Fraction

import pytest
from reshard_problems import BANDWIDTH, problem

from rhino.errors import RhinoError
from rhino.reshard.checker import program_time
from rhino.reshard.data import STRATEGIES
from rhino.reshard.plan import plan_reshard
from rhino.reshard.strategies import best_chunks

F = Fraction
V, B, A = 2**24, F(10**9), F(1, 10**5)


def unit_time(
    strategy: str,
    nbytes: int,
    receiver_hosts: int,
    receivers_per_host: int,
    bandwidth: Fraction,
    latency: Fraction = Fraction(0),
    chunks: int | None = None,
) -> Fraction:
    """Seconds of one unit of V bytes to A hosts with B receivers each, at bandwidth b and latency a per message.

    - send-recv: A B (a + V/b).
    - local-all-gather: A (B a + V/b). Gathers inside hosts are taken as free; it cannot gather across hosts.
    - global-all-gather: (2A - 1) (a + V/(A b)): A parts are scattered, then A - 1 rounds of a ring. About 2 V/b.
    - broadcast: (K + A - 1) (a + V/(K b)) in K chunks; the best K where none is given, and V/b, its limit, without
      latency.
    """
    if not nbytes or not receiver_hosts:
        return Fraction(0)
    hosts, once = receiver_hosts, nbytes / Fraction(bandwidth)
    if strategy == "send-recv":
        return hosts * receivers_per_host * (latency + once)
    if strategy == "local-all-gather":
        return hosts * (receivers_per_host * latency + once)
    if strategy == "global-all-gather":
        return (2 * hosts - 1) * (latency + once / hosts)
    if chunks is None and not latency:
        return once
    count = chunks or best_chunks(once, hosts, latency)
    return (count + hosts - 1) * (latency + once / count)


def test_closed_forms() -> None:
    once = V / B
    assert unit_time("send-recv", V, 2, 4, B, A) == 8 * (A + once)
    assert unit_time("local-all-gather", V, 2, 4, B, A) == 2 * (4 * A + once)
    assert unit_time("global-all-gather", V, 1, 4, B, A) == A + once
    assert unit_time("global-all-gather", V, 4, 4, B, F(0)) == F(7, 4) * once
    assert unit_time("broadcast", V, 4, 2, B, A, 16) == 19 * (A + once / 16)
    assert unit_time("broadcast", V, 4, 2, B, F(0)) == once
    assert unit_time("broadcast", V, 1, 2, B, A) == A + once


@pytest.mark.parametrize("hosts", [2, 3, 8])
@pytest.mark.parametrize("nbytes", [1, 1000, V])
def test_the_number_of_chunks_is_the_best(hosts: int, nbytes: int) -> None:
    tried = (unit_time("broadcast", nbytes, hosts, 1, B, A, chunks) for chunks in range(1, 200))
    assert unit_time("broadcast", nbytes, hosts, 1, B, A) == min(tried)


def test_nothing_to_send_takes_no_time() -> None:
    assert {unit_time(strategy, 0, 2, 2, B, A) for strategy in STRATEGIES} == {0}


@pytest.mark.parametrize("per_host", [1, 2, 4])
@pytest.mark.parametrize("hosts", [1, 2, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_programs_of_one_unit_take_the_time_of_the_closed_form(strategy: str, hosts: int, per_host: int) -> None:
    tensor, network = problem((4096, 1024), ((1,), "R,R"), ((hosts, per_host), "R,R"), per_host=per_host, latency=A)
    plan = plan_reshard([tensor], network, strategy, "naive", chunks=8)
    # What cannot be gathered across hosts is sent to each receiver.
    formula = "send-recv" if strategy == "local-all-gather" and hosts > 1 else strategy
    expected = unit_time(formula, V, hosts, per_host, BANDWIDTH, A, 8)
    assert program_time(plan.program, network) == plan.makespan_s == expected


def test_unknown_names_are_refused() -> None:
    tensor, network = problem((8, 8), ((2,), "S0,R"), ((2,), "R,R"))
    with pytest.raises(RhinoError, match="strategy 'p2p' is unknown; use one of send-recv"):
        plan_reshard([tensor], network, "p2p")
    with pytest.raises(RhinoError, match="scheduler 'best' is unknown; use one of naive"):
        plan_reshard([tensor], network, "broadcast", "best")
    with pytest.raises(RhinoError, match="chunks: 0 is not a positive number"):
        plan_reshard([tensor], network, chunks=0)
