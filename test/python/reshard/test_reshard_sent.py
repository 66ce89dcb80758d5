"""Who sends what, and in which order, as it follows of programs: what plans say of themselves."""

from __future__ import annotations

import pytest
from reshard_problems import drawn

from rhino.reshard.data import SCHEDULERS, STRATEGIES, Hop, MessageProgram, MessageStep, MovedTensor, Phase, Tile, Unit
from rhino.reshard.plan import plan_reshard
from rhino.reshard.sent import order_of, ports_of, senders_of


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_programs_are_sent_by_those_whom_plans_name(strategy: str, scheduler: str) -> None:
    split = crossing = 0
    for seed in range(30):
        tensor, network = drawn(seed, overlap=bool(seed % 2))
        plan = plan_reshard([tensor], network, strategy, scheduler)
        for unit, sent in zip(plan.units, senders_of(plan.program, network.host_of), strict=True):
            holding = {network.host_of[device] for device in unit.holders}
            assert bool(sent) == bool({network.host_of[device] for device in unit.receivers} - holding)
            if sent:
                assert sent == tuple((host, nbytes) for host, _, nbytes in plan.senders[unit.index])
            crossing += bool(sent)
            split += len(sent) > 1
        assert sorted(order_of(plan.program)) == [unit.index for unit in plan.units]
    assert crossing > 50
    assert bool(split) == (strategy == "broadcast" and scheduler == "optimal")


def test_the_first_holder_to_send_a_byte_is_its_sender() -> None:
    unit = Unit(0, 0, ((0, 10),), 10, (0, 1), (2, 3))
    late = Unit(1, 0, ((10, 12),), 2, (0, 1), (2, 3))
    steps = (
        MessageStep(
            (Hop(0, 2, 0, 0, 6), Hop(1, 3, 0, 4, 6))
        ),  # both send bytes 4 and 5, host 0 by its place in the step
        MessageStep((Hop(0, 3, 0, 0, 4), Hop(1, 2, 0, 6, 4))),
        MessageStep((Hop(1, 2, 0, 10, 2),)),
        MessageStep((Hop(2, 3, 0, 10, 2),)),
    )
    program = MessageProgram((0, 1, 2, 3), (unit, late), ((0, 1),), (Phase(1, 1, steps),))
    host_of = {device: device for device in range(4)}
    assert senders_of(program, host_of) == (((0, 6), (1, 4)), ((1, 2),))
    assert order_of(program) == (0, 1)
    backwards = MessageProgram(program.hosts, program.units, program.bundles, (Phase(1, 1, steps[2:] + steps[:2]),))
    assert order_of(backwards) == (1, 0)


def test_there_and_back_have_different_ports() -> None:
    ends = [tuple(Tile(device, ((0, 4),)) for device in devices) for devices in ((0, 1, 2), (3, 4, 5))]
    host_of = {device: device // 3 for device in range(6)}
    there, back = (MovedTensor((4,), 4, a, b) for a, b in (ends, ends[::-1]))
    assert list(ports_of([there], host_of).items()) == [(0, 0), (1, 5)]
    assert list(ports_of([back], host_of).items()) == [(1, 3), (0, 2)]
