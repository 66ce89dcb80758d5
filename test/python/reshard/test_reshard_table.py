"""The makespans of docs/design/resharding.md, "Closed cases", as fractions of one transfer of the whole tensor."""

from __future__ import annotations

from fractions import Fraction

import pytest
from reshard_problems import BANDWIDTH, problem

from rhino.reshard.checker import program_time
from rhino.reshard.plan import plan_reshard

SHAPE = (1024, 1024, 512)
F = Fraction
# Source, target; times of send-recv, local all-gather, naive broadcast, and the bound.
TABLE = [
    (((2, 4), "S0,R,R"), ((2, 4), "S0,R,R"), F(2), F(1, 2), F(1, 2), F(1, 2)),
    (((2, 4), "R,R,R"), ((2, 4), "S0,R,R"), F(2), F(1, 2), F(1), F(1, 2)),
    (((2, 4), "R,S0,R"), ((2, 4), "S0,R,R"), F(2), F(1, 2), F(3, 4), F(1, 2)),
    (((2, 4), "R,S01,R"), ((2, 4), "S01,R,R"), F(1, 2), F(1, 2), F(15, 16), F(1, 2)),
    (((1, 4), "S1,R,R"), ((2, 4), "R,R,R"), F(8), F(8), F(1), F(1)),
]


@pytest.mark.parametrize(
    ("source", "target", "send_recv", "local", "naive", "bound"), TABLE, ids=[f"{row[0]}-{row[1]}" for row in TABLE]
)
def test_makespans_of_the_table(
    source: tuple[tuple[int, ...], str],
    target: tuple[tuple[int, ...], str],
    send_recv: Fraction,
    local: Fraction,
    naive: Fraction,
    bound: Fraction,
) -> None:
    tensor, network = problem(SHAPE, source, target)
    once = tensor.nbytes / BANDWIDTH
    plans = {
        name: plan_reshard([tensor], network, *name)
        for name in (
            ("send-recv", "optimal"),
            ("local-all-gather", "optimal"),
            ("broadcast", "naive"),
            ("broadcast", "optimal"),
        )
    }
    assert [plan.makespan_s / once for plan in plans.values()] == [send_recv, local, naive, bound]
    assert {plan.bound_s / once for plan in plans.values()} == {bound}
    assert plans["broadcast", "optimal"].gap == 0
    for plan in plans.values():
        # Chunks of two receiving hosts, where there are any, are all that the programs add.
        more = F(33, 32) if plan.chunks == 32 else 1
        assert program_time(plan.program, network) == plan.makespan_s * more


@pytest.mark.parametrize("chunks", [1, 2, 8, 64])
@pytest.mark.parametrize("hosts", [2, 4])
def test_one_device_to_many_hosts(hosts: int, chunks: int) -> None:
    tensor, network = problem((1024, 1024, 256), ((1,), "R,R,R"), ((hosts, 2), "R,R,R"), per_host=2)
    once = tensor.nbytes / BANDWIDTH
    assert tensor.nbytes == 2**30
    for scheduler in ("naive", "optimal"):
        plan = plan_reshard([tensor], network, "broadcast", scheduler, chunks=chunks)
        assert plan.makespan_s == F(chunks + hosts - 1, chunks) * once == program_time(plan.program, network)
        assert plan.chunks == chunks
    assert plan_reshard([tensor], network, "send-recv").makespan_s == 2 * hosts * once
