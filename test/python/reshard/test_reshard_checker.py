"""The checker accepts what is planned and names the message that is wrong in what was changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from reshard_problems import BANDWIDTH, drawn, network, problem

from rhino.errors import RhinoError
from rhino.reshard.checker import check_program, program_time, unit_starts
from rhino.reshard.data import SCHEDULERS, STRATEGIES, Hop, MessageProgram, MessageStep, Network, Phase, Unit
from rhino.reshard.plan import plan_reshard

F = Fraction


def changed(program: MessageProgram, phase: int, step: int, hop: int, to: Hop | None) -> MessageProgram:
    """A program with another hop, or without it (and without steps and phases that are then empty)."""
    old = program.phases[phase]
    hops = list(old.steps[step].hops)
    hops[hop : hop + 1] = [] if to is None else [to]
    steps = [*old.steps[:step], *([MessageStep(tuple(hops))] if hops else []), *old.steps[step + 1 :]]
    made = [replace(old, steps=tuple(steps))] if steps else []
    return replace(program, phases=(*program.phases[:phase], *made, *program.phases[phase + 1 :]))


def hops_of(program: MessageProgram) -> Iterator[tuple[tuple[int, int, int], Hop]]:
    for at, phase in enumerate(program.phases):
        for step_at, step in enumerate(phase.steps):
            for hop_at, hop in enumerate(step.hops):
                yield (at, step_at, hop_at), hop


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_what_is_planned_is_accepted(strategy: str, scheduler: str) -> None:
    for seed in range(20):
        tensor, hosts = drawn(seed, overlap=seed % 2 == 1)
        plan = plan_reshard([tensor], hosts, strategy, scheduler)
        check_program(plan.program, hosts)


# Send-recv sends whole units to each receiver of a host, so that only the last of them counts there.
@pytest.mark.parametrize("strategy", ["local-all-gather", "global-all-gather", "broadcast"])
@pytest.mark.parametrize("scheduler", ["naive", "optimal"])
def test_a_dropped_or_shortened_message_is_missed(strategy: str, scheduler: str) -> None:
    count = 0
    for seed in range(8):
        tensor, hosts = drawn(seed)
        program = plan_reshard([tensor], hosts, strategy, scheduler).program
        counted = {unit.index: len({hosts.host_of[device] for device in unit.receivers}) for unit in program.units}
        for place, hop in list(hops_of(program))[:24]:
            bundle = program.bundles[hop.bundle]
            if strategy == "local-all-gather" and counted[bundle[0]] > 1:
                continue
            named = rf"bundle {hop.bundle} from|unit ({'|'.join(str(unit) for unit in bundle)}): host {hop.target} has"
            with pytest.raises(RhinoError, match=named):
                check_program(changed(program, *place, None), hosts)
            # In chunks the last one may be shorter than its stride, so that only the others need all of their bytes.
            with pytest.raises(RhinoError, match=named):
                check_program(changed(program, *place, replace(hop, length=max(1, hop.length // 2))), hosts)
            with pytest.raises(RhinoError):
                check_program(changed(program, *place, replace(hop, target=hop.source)), hosts)
            count += 1
    assert count > 20


def chain(lag: int = 1, chunks: int = 4, periods: int = 5) -> tuple[MessageProgram, Network]:
    """One unit of 100 bytes from host 0 over host 1 to host 2."""
    unit = Unit(0, 0, ((0, 100),), 100, (0,), (1, 2))
    step = MessageStep((Hop(0, 1, 0, 0, 25, 25, 0), Hop(1, 2, 0, 0, 25, 25, lag)))
    return MessageProgram((0, 1, 2), (unit,), ((0,),), (Phase(periods, chunks, (step,)),)), network(3, 1)


def test_a_chain_keeps_its_lag() -> None:
    check_program(*chain())
    with pytest.raises(
        RhinoError, match="phase 0 period 0 step 0: bundle 0 from host 1 to host 2: host 1 does not have byte 0 then"
    ):
        check_program(*chain(lag=0))
    check_program(*chain(lag=2, periods=6))
    with pytest.raises(RhinoError, match="unit 0: host 2 has no byte 75 of it at the end"):
        check_program(*chain(periods=4))
    with pytest.raises(RhinoError, match="unit 0: host 1 has no byte 75 of it at the end"):
        check_program(*chain(chunks=3))


def test_swapped_phases_and_steps_are_refused() -> None:
    tensor, hosts = problem((64, 64), ((1, 1), "R,R"), ((3, 1), "R,R"), per_host=1)
    program = plan_reshard([tensor], hosts, "global-all-gather", "naive").program
    (phase,) = program.phases
    with pytest.raises(RhinoError, match=r"bundle 0 from host 1 to host 2: host 1 does not have byte \d+ then"):
        check_program(replace(program, phases=(replace(phase, steps=phase.steps[::-1]),)), hosts)
    split = replace(program, phases=tuple(replace(phase, steps=(step,)) for step in phase.steps))
    check_program(split, hosts)
    with pytest.raises(RhinoError, match="phase 0 period 0 step 0: bundle 0 from host"):
        check_program(replace(split, phases=split.phases[::-1]), hosts)


@pytest.mark.parametrize(
    ("hops", "message"),
    [
        ((Hop(0, 1, 0, 0, 100), Hop(0, 2, 0, 0, 100)), "phase 0 step 0: host 0 is the source of two messages"),
        ((Hop(0, 2, 0, 0, 100), Hop(1, 2, 0, 0, 100)), "phase 0 step 0: host 2 is the target of two messages"),
        ((Hop(0, 0, 0, 0, 100),), "it is not between two hosts of the program"),
        ((Hop(0, 7, 0, 0, 100),), "it is not between two hosts of the program"),
        ((Hop(0, 1, 3, 0, 100),), "there are 1 bundles"),
        ((Hop(0, 1, 0, 0, 0),), r"its bytes are \[0, \+0\)"),
        ((Hop(0, 1, 0, -5, 10),), r"its bytes are \[-5, \+10\)"),
        ((), "phase 0 step 0: no message"),
        ((Hop(0, 1, 0, 0, 200),), "unit 0: host 2 has no byte 0 of it at the end"),
        ((Hop(2, 1, 0, 0, 100),), "bundle 0 from host 2 to host 1: host 2 does not have byte 0 then"),
    ],
)
def test_malformed_steps_are_refused(hops: tuple[Hop, ...], message: str) -> None:
    program, hosts = chain()
    with pytest.raises(RhinoError, match=message):
        check_program(replace(program, phases=(Phase(1, 1, (MessageStep(hops),)),)), hosts)


@pytest.mark.parametrize(
    ("holder", "size", "message"),
    [
        (0, 100, None),
        (1, 100, "phase 1 period 0 step 0: bundle 1 from host 0 to host 2: host 0 does not have byte 0 then"),
        (0, 120, "unit 1: host 2 has no byte 100 of it at the end"),
    ],
)
def test_phases_with_the_same_messages_are_alike_only_for_bundles_that_are(
    holder: int, size: int, message: str | None
) -> None:
    units = (Unit(0, 0, ((0, 100),), 100, (0,), (2,)), Unit(1, 0, ((100, 100 + size),), size, (holder,), (2,)))
    phases = tuple(Phase(1, 1, (MessageStep((Hop(0, 2, bundle, 0, 100),)),)) for bundle in (0, 1))
    program = MessageProgram((0, 2), units, ((0,), (1,)), phases)
    if message is None:
        check_program(program, network(3, 1))
        # The second phase of a bundle starts with what the first left, so that it is not like a first one.
        back = Phase(1, 1, (MessageStep((Hop(2, 0, 0, 0, 100),)),))
        check_program(replace(program, phases=(phases[0], back, phases[1])), network(3, 1))
        with pytest.raises(RhinoError, match="phase 0 period 0 step 0: bundle 0 from host 2 to host 0"):
            check_program(replace(program, phases=(back, *phases)), network(3, 1))
    else:
        with pytest.raises(RhinoError, match=message):
            check_program(program, network(3, 1))


def pair() -> tuple[MessageProgram, Network]:
    """Two units of 60 and 40 bytes from host 0 to host 1 as one bundle, and one that stays on host 0."""
    units = tuple(Unit(at, 0, ((0, size),), size, (0,), (2 + at,)) for at, size in enumerate((60, 40)))
    inside = Unit(2, 0, ((0, 8),), 8, (0,), (1,))
    program = MessageProgram(
        (0, 1), (*units, inside), ((1, 0),), (Phase(1, 1, (MessageStep((Hop(0, 1, 0, 0, 100),)),)),)
    )
    return program, network(4, 2)


def test_units_of_a_bundle_lie_one_after_the_other() -> None:
    program, hosts = pair()
    check_program(program, hosts)
    assert program.bundle_bytes == (100,)
    short = replace(program, phases=(Phase(1, 1, (MessageStep((Hop(0, 1, 0, 0, 70),)),)),))
    with pytest.raises(RhinoError, match="unit 0: host 1 has no byte 30 of it at the end"):
        check_program(short, hosts)
    late = replace(program, phases=(Phase(1, 1, (MessageStep((Hop(0, 1, 0, 39, 61),)),)),))
    with pytest.raises(RhinoError, match="unit 1: host 1 has no byte 0 of it at the end"):
        check_program(late, hosts)


@pytest.mark.parametrize(
    ("bundles", "message"),
    [
        (((0,), ()), "bundle 1: no unit"),
        (((0, 3),), "bundle 0: unit 3, but there are 3 units"),
        (((0,), (1, 0)), "bundle 1: unit 0 is in bundle 0 already"),
        (((0, 1, 2),), "bundle 0: units 0 and 2 have different hosts"),
        (((0,),), "unit 1: host 1 needs it, but it is in no bundle"),
    ],
)
def test_malformed_bundles_are_refused(bundles: tuple[tuple[int, ...], ...], message: str) -> None:
    program, hosts = pair()
    with pytest.raises(RhinoError, match=message):
        check_program(replace(program, bundles=bundles), hosts)


def test_devices_and_hosts_of_the_network_are_looked_for() -> None:
    program, _ = chain()
    with pytest.raises(RhinoError, match="device 2: the network has no host for it"):
        check_program(program, network(2, 1))
    with pytest.raises(RhinoError, match="host 1: no bandwidth is given for it"):
        check_program(program, Network({0: 0, 1: 1, 2: 2}, {0: BANDWIDTH, 2: BANDWIDTH}))


def test_time_of_a_chain() -> None:
    program, hosts = chain()
    assert program_time(program, hosts) == 5 * 25 / BANDWIDTH
    slow = replace(hosts, latency_s=F(1, 100))
    assert program_time(program, slow) == 5 * (F(1, 100) + 25 / BANDWIDTH)
    uneven = replace(hosts, bandwidth_bytes_s={0: BANDWIDTH, 1: BANDWIDTH, 2: BANDWIDTH / 2})
    assert program_time(program, uneven) == 5 * 50 / BANDWIDTH


def test_a_unit_starts_with_the_first_message_that_has_bytes_of_it() -> None:
    """Against every message of every period, with the units that its bytes are of."""
    later = 0
    for seed in range(30):
        tensor, hosts = drawn(seed, overlap=seed % 2 == 1, latency=F(1, 10**5) * (seed % 3))
        program = plan_reshard([tensor], hosts, chunks=(None, 5, 40)[seed % 3]).program
        clock = dict.fromkeys(program.hosts, F(0))
        found: dict[int, F] = {}
        for phase in program.phases:
            for period, step in product(range(phase.periods), phase.steps):
                over: dict[int, F] = {}
                for hop in step.hops:
                    begin = max(clock[hop.source], clock[hop.target])
                    chunk = period - hop.lag
                    moved = range(hop.start + hop.stride * chunk, hop.start + hop.stride * chunk + hop.length)
                    stop = 0
                    for unit in program.bundles[hop.bundle]:
                        start, stop = stop, stop + program.units[unit].nbytes
                        if 0 <= chunk < phase.chunks and moved.start < stop and start < moved.stop:
                            found[unit] = min(begin, found.get(unit, begin))
                    for host in (hop.source, hop.target):
                        over[host] = max(over.get(host, F(0)), begin + hosts.latency_s + step.length / BANDWIDTH)
                clock.update(over)
        assert unit_starts(program, hosts) == found
        later += len(set(found.values())) > len(program.bundles)
    assert later > 0, "no bundle whose units start one after another"


def test_hosts_wait_only_for_those_they_have_messages_with() -> None:
    units = tuple(Unit(at, 0, ((0, size),), size, (at,), (at + 2,)) for at, size in enumerate((100, 30)))
    apart = tuple(MessageStep((Hop(at, at + 2, at, 0, unit.nbytes),)) for at, unit in enumerate(units))
    program = MessageProgram((0, 1, 2, 3), units, ((0,), (1,)), (Phase(1, 1, apart),))
    hosts = network(4, 1)
    check_program(program, hosts)
    assert program_time(program, hosts) == 100 / BANDWIDTH
    # In one step messages are padded to the longest.
    together = MessageProgram(
        (0, 1, 2, 3), units, ((0,), (1,)), (Phase(1, 1, (MessageStep((apart[0].hops[0], apart[1].hops[0])),)),)
    )
    assert (
        program_time(
            together, replace(hosts, bandwidth_bytes_s={0: BANDWIDTH * 4, 1: BANDWIDTH, 2: BANDWIDTH * 4, 3: BANDWIDTH})
        )
        == 100 / BANDWIDTH
    )


def test_time_of_many_periods_is_that_of_going_through_each() -> None:
    """The time is found without going through all periods; here the same periods are written out."""
    for seed in range(30):
        tensor, hosts = drawn(seed, overlap=seed % 2 == 1, latency=F(1, 10**4))
        uneven = {host: speed * (1 + (host + seed) % 3) for host, speed in hosts.bandwidth_bytes_s.items()}
        hosts = replace(hosts, bandwidth_bytes_s=uneven)
        program = plan_reshard([tensor], hosts, chunks=9).program
        written = [
            Phase(1, 1, tuple(MessageStep(tuple(replace(hop, lag=0) for hop in step.hops)) for step in phase.steps))
            for phase in program.phases
            for _ in range(phase.periods)
        ]
        assert program_time(replace(program, phases=tuple(written)), hosts) == program_time(program, hosts)
