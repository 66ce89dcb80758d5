"""The optimal scheduler: at the bound for random specs, in programs that come as near as their chunks allow."""

from __future__ import annotations

from fractions import Fraction

from reshard_problems import BANDWIDTH, drawn, problem

from rhino.reshard import Network, Program, ReshardPlan, Tensor, Tile, plan_reshard, program_time, units_of
from rhino.reshard.optimal import optimal_program
from rhino.reshard.units import tasks_of

LATENCY = Fraction(2, 10**5)


def depth(program: Program) -> int:
    return 1 + max((hop.lag for phase in program.phases for step in phase.steps for hop in step.hops), default=0)


def in_waves(plan: ReshardPlan, network: Network) -> bool:
    """Whether units are passed on whole, in a program of one period."""
    holders = [{network.host_of[device] for device in unit.holders} for unit in plan.units]
    return any(
        phase.periods == 1 and hop.source not in holders[hop.unit]
        for phase in plan.program.phases
        for step in phase.steps
        for hop in step.hops
    )


def waves_time(plan: ReshardPlan, network: Network) -> Fraction:
    """(W + D - 1) / W, where W are the units of the largest class of hosts, 64 at most, and D the most target hosts."""
    classes = [
        tuple(sorted({network.host_of[device] for device in devices}) for devices in (unit.holders, unit.receivers))
        for unit in plan.units
    ]
    waves = min(64, max(classes.count(each) for each in classes))
    return Fraction(waves + max(len(targets) for _, targets in classes) - 1, waves)


def check_at_bound(plan: ReshardPlan, tensor: Tensor, network: Network) -> None:
    assert plan.gap == 0
    assert plan.makespan_s == plan.bound_s
    time = program_time(plan.program, network)
    assert time >= plan.bound_s
    # 1 % of padding, and a whole item in each message.
    periods = plan.chunks + depth(plan.program) - 1
    slack = periods * sum(len(phase.steps) for phase in plan.program.phases) * tensor.item_bytes / BANDWIDTH
    exact = plan.bound_s * periods / plan.chunks
    if in_waves(plan, network):
        exact = plan.bound_s * waves_time(plan, network)
    assert time <= exact * Fraction(101, 100) + slack
    for unit, senders in zip(plan.units, plan.senders, strict=True):
        assert sum(nbytes for _, _, nbytes in senders) == unit.nbytes
        for host, device, nbytes in senders:
            assert device in unit.holders
            assert network.host_of[device] == host
            assert nbytes > 0


def test_200_random_specs_are_at_the_bound() -> None:
    moved = 0
    for seed in range(200):
        tensor, network = drawn(seed)
        plan = plan_reshard([tensor], network)
        check_at_bound(plan, tensor, network)
        moved += bool(plan.program.phases)
    assert moved == 200


def test_hosts_that_both_send_and_receive_are_at_the_bound() -> None:
    beyond = 0
    for seed in range(120):
        tensor, network = drawn(seed, overlap=True)
        plan = plan_reshard([tensor], network)
        assert plan.gap == 0
        assert program_time(plan.program, network) >= plan.bound_s
        beyond += plan.bounds.relay > max(plan.bounds.recv, plan.bounds.send)
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
    program, count, _ = optimal_program(tasks, units, network, None)
    assert count > 1
    for chunks in range(1, 80):
        other, given, _ = optimal_program(tasks, units, network, chunks)
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
    tensors = [Tensor(shape, 4, (Tile(at, whole),), (Tile(at + 2, whole),)) for at in range(2)]
    once = tensors[0].nbytes / BANDWIDTH
    plan = plan_reshard(tensors, network)
    assert plan.makespan_s == once == program_time(plan.program, network)
    assert [unit.tensor for unit in plan.units] == [0, 1]


def test_thousands_of_units_are_sent_in_waves() -> None:
    tensor, network = problem((1024, 1024), ((32,), "S0,R"), ((4, 16), "R,S1"), per_host=16)
    plan = plan_reshard([tensor], network)
    assert len(plan.units) == 512
    assert plan.gap == 0
    # 64 waves of units over four hosts of a chain, not 512 units of as many chunks each.
    assert program_time(plan.program, network) <= plan.bound_s * Fraction(67, 64) * Fraction(101, 100)
    assert all(phase.periods == 1 for phase in plan.program.phases)


def test_steps_are_few() -> None:
    """Equal units are matched whole: as many steps as a port has units."""
    tensor, network = problem((1024, 1024), ((2, 4), "R,S01"), ((2, 4), "S01,R"))
    plan = plan_reshard([tensor], network)
    assert len(plan.units) == 64
    assert [len(phase.steps) for phase in plan.program.phases] == [32]


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
