"""The optimal scheduler: at the bound for random specs, in programs that come as near as their chunks allow."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from reshard_problems import BANDWIDTH, drawn, drawn_spec, problem

from rhino.reshard.checker import program_time
from rhino.reshard.data import SCHEDULERS, STRATEGIES, MessageProgram, MovedTensor, Network, Tile
from rhino.reshard.optimal import optimal_program
from rhino.reshard.plan import ReshardPlan, plan_reshard
from rhino.reshard.units import bundled, tasks_of, units_of

LATENCY = Fraction(2, 10**5)


def depth(program: MessageProgram) -> int:
    return 1 + max((hop.lag for phase in program.phases for step in phase.steps for hop in step.hops), default=0)


def check_at_bound(plan: ReshardPlan, tensor: MovedTensor, network: Network) -> None:
    time = program_time(plan.program, network)
    assert time >= plan.bound_s
    few = plan.chunks < 32 * (depth(plan.program) - 1)
    # Items are the smallest chunks. Where there are too few of them for the limit, the planned time is the program's.
    assert not few or plan.chunks <= max(plan.program.bundle_bytes) // tensor.item_bytes
    assert plan.makespan_s == (time if few else plan.bound_s)
    # 1 % of padding, and a whole item in each message.
    periods = plan.chunks + depth(plan.program) - 1
    slack = periods * sum(len(phase.steps) for phase in plan.program.phases) * tensor.item_bytes / BANDWIDTH
    exact = plan.bound_s * periods / plan.chunks
    assert time <= exact * Fraction(101, 100) + slack
    for unit, senders in zip(plan.units, plan.senders, strict=True):
        assert sum(nbytes for _, _, nbytes in senders) == unit.nbytes
        for host, device, nbytes in senders:
            assert device in unit.holders
            assert network.host_of[device] == host
            assert nbytes > 0


def test_200_random_specs_are_at_the_bound() -> None:
    moved = exact = 0
    for seed in range(200):
        tensor, network = drawn(seed)
        plan = plan_reshard([tensor], network)
        check_at_bound(plan, tensor, network)
        moved += bool(plan.program.phases)
        exact += plan.gap == 0
    assert moved == 200
    assert exact > 190, "tensors of few items are rare"


def test_hosts_that_both_send_and_receive_are_at_the_bound() -> None:
    beyond = exact = 0
    for seed in range(120):
        tensor, network = drawn(seed, overlap=True)
        plan = plan_reshard([tensor], network)
        few = plan.chunks < 32 * (depth(plan.program) - 1)
        assert plan.gap == 0 or (few and plan.makespan_s == program_time(plan.program, network))
        assert program_time(plan.program, network) >= plan.bound_s
        exact += plan.gap == 0
        beyond += plan.bounds.relay > max(plan.bounds.recv, plan.bounds.send)
    assert exact > 110, "tensors of few items are rare"
    assert beyond > 0, "no case in which passing on is what takes longest"


def test_nobody_sends_longer_than_the_bound_allows() -> None:
    """Loads of ports, counted in the program: what each host sends and receives in whole units of its bytes."""
    for seed in range(60):
        tensor, network = drawn(seed, overlap=seed % 2 == 1)
        plan = plan_reshard([tensor], network)
        loads: dict[tuple[int, str], int] = {}
        for phase in plan.program.phases:
            for step in phase.steps:
                for hop in step.hops:
                    for port in ((hop.source, "out"), (hop.target, "in")):
                        loads[port] = loads.get(port, 0) + hop.length * phase.chunks
        # Each message may have an item more than its share.
        hops = sum(len(step.hops) for phase in plan.program.phases for step in phase.steps)
        slack = hops * plan.chunks * tensor.item_bytes
        assert all(load / BANDWIDTH <= plan.bound_s + slack / BANDWIDTH for load in loads.values())


def test_a_unit_is_split_where_that_helps() -> None:
    # Three holders of one unit, and one receiver three times as fast: each holder sends a third.
    tensor, network = problem((1024, 1023), ((3, 1), "R,R"), ((1, 1), "R,R"), per_host=1)
    fast = {host: BANDWIDTH * (3 if host == 3 else 1) for host in network.bandwidth_bytes_s}
    plan = plan_reshard([tensor], Network(network.host_of, fast))
    assert plan.bounds.recv == plan.bounds.send
    # A message to the fast host is as slow as its sender, and the host receives one at a time.
    assert plan.gap == 2
    slow = plan_reshard([tensor], network)
    assert slow.gap == 0
    assert [nbytes for _, _, nbytes in slow.senders[0]] == [1024 * 1023 * 4 // 3] * 3


def test_different_bandwidths_are_used_where_hosts_have_nothing_in_common() -> None:
    tensor, network = problem((1200, 1000), ((2, 1), "S0,R"), ((2, 1), "S0,R"), per_host=1)
    uneven = Network(network.host_of, {0: BANDWIDTH, 1: BANDWIDTH * 3, 2: BANDWIDTH, 3: BANDWIDTH * 3})
    plan = plan_reshard([tensor], uneven)
    assert plan.gap == 0
    assert program_time(plan.program, uneven) == plan.bound_s == tensor.nbytes / (2 * BANDWIDTH)


def test_gaps_of_different_bandwidths_are_those_of_the_program() -> None:
    for seed in range(40):
        tensor, network = drawn(seed)
        uneven = Network(
            network.host_of,
            {host: speed * (1 + (host * 7 + seed) % 3) for host, speed in network.bandwidth_bytes_s.items()},
        )
        plan = plan_reshard([tensor], uneven)
        assert plan.makespan_s >= plan.bound_s


def test_latency_decides_the_number_of_chunks() -> None:
    tensor, network = problem((4096, 1024), ((1, 1), "R,R"), ((4, 1), "R,R"), per_host=1, latency=LATENCY)
    plan = plan_reshard([tensor], network)
    assert plan.chunks > 1
    assert plan.makespan_s == program_time(plan.program, network)
    for chunks in range(1, 80):
        # Whole items make a chunk longer by less than that.
        assert plan.makespan_s <= plan_reshard([tensor], network, chunks=chunks).makespan_s * Fraction(1001, 1000)
    small, _ = problem((64, 64), ((1, 1), "R,R"), ((4, 1), "R,R"), per_host=1)
    assert plan_reshard([small], network).chunks == 1


def test_no_other_number_of_chunks_is_better() -> None:
    chunked = 0
    for seed in range(150):
        tensor, network = drawn(seed, latency=LATENCY)
        if tensor.nbytes < 5e7:
            continue  # chunks of 64 KiB are what limits their number
        plan = plan_reshard([tensor], network, time_limit_s=0.0)
        if plan.chunks == 1:
            continue
        chunked += 1
        for chunks in (1, 2, 4, 8, 16, 32, 64, 128):
            other = plan_reshard([tensor], network, chunks=chunks, time_limit_s=0.0)
            assert plan.makespan_s <= other.makespan_s * Fraction(102, 100)
    assert chunked > 5


def test_chains_of_two_units_are_cut_into_the_best_number_of_chunks() -> None:
    tensor, network = problem((4096, 1024), ((2, 1), "S0,R"), ((4, 1), "R,R"), per_host=1, latency=LATENCY)
    units = units_of([tensor])
    tasks = tasks_of(units, network, [tensor.item_bytes])
    bundles, together = bundled(tasks, alike=False)
    assert bundles == ((0,), (1,))
    program, count, _ = optimal_program(together, units, bundles, network, None)
    assert count > 1
    for chunks in range(1, 80):
        other, given, _ = optimal_program(together, units, bundles, network, chunks)
        assert given == chunks
        # Whole items make a chunk longer by less than that.
        assert program_time(program, network) <= program_time(other, network) * Fraction(1001, 1000)


def test_the_fastest_target_passes_on() -> None:
    tensor, network = problem((1024, 1024), ((1, 1), "R,R"), ((2, 1), "R,R"), per_host=1)
    plan = plan_reshard([tensor], Network(network.host_of, dict(network.bandwidth_bytes_s) | {1: BANDWIDTH / 4}))
    hops = [hop for phase in plan.program.phases for step in phase.steps for hop in step.hops]
    assert {(hop.source, hop.target, hop.lag) for hop in hops} == {(0, 2, 0), (2, 1, 1)}


def test_with_latency_the_optimal_scheduler_is_never_worse_than_the_others() -> None:
    for seed in range(40):
        tensor, network = drawn(seed, latency=LATENCY)
        optimal = plan_reshard([tensor], network)
        for scheduler in ("naive", "load-balance", "greedy", "search"):
            assert optimal.makespan_s <= plan_reshard([tensor], network, "broadcast", scheduler).makespan_s


def test_tensors_are_scheduled_together() -> None:
    """Two tensors of which each keeps one pair of hosts busy take as long as one."""
    shape = (1024, 1024)
    whole = ((0, 1024), (0, 1024))
    network = Network({device: device for device in range(4)}, dict.fromkeys(range(4), BANDWIDTH))
    tensors = [MovedTensor(shape, 4, (Tile(at, whole),), (Tile(at + 2, whole),)) for at in range(2)]
    once = tensors[0].nbytes / BANDWIDTH
    plan = plan_reshard(tensors, network)
    assert plan.makespan_s == once == program_time(plan.program, network)
    assert [unit.tensor for unit in plan.units] == [0, 1]


def test_thousands_of_units_are_few_bundles() -> None:
    tensor, network = problem((1024, 1024), ((32,), "S0,R"), ((4, 16), "R,S1"), per_host=16)
    plan = plan_reshard([tensor], network)
    assert (len(plan.units), len(plan.program.bundles)) == (512, 2)
    assert plan.gap == 0
    assert program_time(plan.program, network) <= plan.bound_s * Fraction(33, 32) * Fraction(101, 100)
    assert [len(phase.steps) for phase in plan.program.phases] == [2]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_steps_are_few(strategy: str) -> None:
    """Units with the same hosts travel as one, half of what each host has to each of the two others."""
    tensor, network = problem((1024, 1024, 512), ((2, 4), "R,S01,R"), ((2, 4), "S01,R,R"))
    plan = plan_reshard([tensor], network, strategy)
    assert len(plan.units) == 64
    assert sorted(len(bundle) for bundle in plan.program.bundles) == [16] * 4
    steps = [step for phase in plan.program.phases for step in phase.steps]
    assert program_time(plan.program, network) == plan.makespan_s == plan.bound_s == tensor.nbytes / (2 * BANDWIDTH)
    assert len(steps) == (2 if strategy == "broadcast" else 4)
    for scheduler in ("naive", "load-balance", "greedy", "search"):
        alone = plan_reshard([tensor], network, strategy, scheduler).program
        assert alone.bundles == tuple((unit.index,) for unit in plan.units)


def test_bundles_have_one_latency_each() -> None:
    tensor, network = problem((1024, 1024), ((2, 4), "R,S01"), ((2, 4), "S01,R"), latency=LATENCY)
    for strategy in STRATEGIES:
        plan = plan_reshard([tensor], network, strategy)
        assert plan.makespan_s == plan.bound_s + 2 * LATENCY
        each = plan_reshard([tensor], network, strategy, "load-balance")
        assert each.makespan_s >= each.bound_s + 32 * LATENCY


def test_tensors_of_different_items_travel_together() -> None:
    """Bundles are cut at multiples of the largest item, and larger items come first: nowhere inside of one."""
    random = Random(5)
    cut = 0
    for _ in range(40):
        tensors, network = [], problem((8, 8), ((2, 2), "R,R"), ((4, 2), "R,R"), per_host=2)[1]
        for item in random.sample((1, 2, 4, 8), 3):
            shape = (random.choice((30, 257)), random.choice((64, 33)))
            source, target = (((2, 2), drawn_spec(random, 2, 2)), ((4, 2), drawn_spec(random, 2, 2)))
            tensors.append(problem(shape, source, target, per_host=2, item_bytes=item)[0])
        plan = plan_reshard(tensors, network)
        program = plan.program
        ends: list[set[int]] = [set() for _ in program.bundles]
        for phase in program.phases:
            for hop in (hop for step in phase.steps for hop in step.hops):
                starts = (hop.start + hop.stride * chunk for chunk in range(phase.chunks))
                ends[hop.bundle].update(end for start in starts for end in (start, start + hop.length))
        for bundle, cuts in zip(program.bundles, ends, strict=True):
            start = 0
            for unit in bundle:
                stop, item = start + plan.units[unit].nbytes, tensors[plan.units[unit].tensor].item_bytes
                inside = [end - start for end in cuts if start < end < stop]
                assert all(at % item == 0 for at in inside)
                assert all(nbytes % item == 0 for _, _, nbytes in plan.senders[unit])
                assert sum(nbytes for _, _, nbytes in plan.senders[unit]) == plan.units[unit].nbytes
                cut += bool(inside)
                start = stop
    assert cut > 20


def test_what_a_receivers_host_holds_does_not_cross() -> None:
    """The first of two units is wanted on its holder's host too, the second is not: they still go together."""
    network = Network({0: 0, 1: 0, 2: 1, 3: 1}, dict.fromkeys(range(2), BANDWIDTH))
    tensor = MovedTensor(
        (8,), 4, (Tile(0, ((0, 8),)),), (Tile(1, ((0, 4),)), Tile(2, ((0, 4),)), Tile(3, ((4, 8),)))
    )  # fmt: skip
    plan = plan_reshard([tensor], network)
    assert [(unit.holders, unit.receivers) for unit in plan.units] == [((0,), (1, 2)), ((0,), (3,))]
    assert plan.program.bundles == ((0, 1),)
    assert plan.makespan_s == plan.bound_s == tensor.nbytes / BANDWIDTH == program_time(plan.program, network)


def test_small_tensors_take_the_time_that_is_planned() -> None:
    """Chunks are whole items; a tensor of few items is not said to be in the limit of ever smaller ones."""
    for latency in (Fraction(0), LATENCY):
        tensor, network = problem((8, 8), ((1,), "R,R"), ((8, 1), "R,R"), per_host=1, latency=latency)
        for scheduler in SCHEDULERS:
            plan = plan_reshard([tensor], network, "broadcast", scheduler)
            assert plan.makespan_s == program_time(plan.program, network)
    exact, network = problem((8, 8), ((1,), "R,R"), ((8, 1), "R,R"), per_host=1)
    plan = plan_reshard([exact], network)
    assert (plan.chunks, plan.gap) == (64, Fraction(7, 64))


def test_what_stays_inside_hosts_needs_no_message() -> None:
    tensor, network = problem((64, 64), ((2, 4), "S0,S1"), ((2, 4), "S0,R"), first=0)
    for scheduler in ("naive", "optimal"):
        plan = plan_reshard([tensor], network, "broadcast", scheduler)
        assert plan.units
        assert (plan.program.hosts, plan.program.phases) == ((), ())
        assert (plan.makespan_s, plan.bound_s, plan.gap) == (0, 0, 0)
        assert all(
            sum(nbytes for _, _, nbytes in each) == unit.nbytes
            for each, unit in zip(plan.senders, plan.units, strict=True)
        )
