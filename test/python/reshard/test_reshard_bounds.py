"""Bounds against their definition: over every subset of hosts."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from random import Random

from reshard_problems import BANDWIDTH, drawn, problem

from rhino.reshard.bounds import bounds_of
from rhino.reshard.data import Network, Unit
from rhino.reshard.units import units_of


def random_units(seed: int) -> tuple[tuple[Unit, ...], Network]:
    """Units with any holders and receivers, over hosts of one or two devices and different bandwidths."""
    random = Random(seed)
    hosts = random.randint(2, 6)
    devices = range(2 * hosts)
    units = []
    for index in range(random.randint(1, 12)):
        holders = sorted(random.sample(devices, random.randint(1, 3)))
        others = [device for device in devices if device not in holders]
        receivers = sorted(random.sample(others, random.randint(1, min(4, len(others)))))
        units.append(Unit(index, 0, ((0, 1),), random.randint(1, 1000), tuple(holders), tuple(receivers)))
    speed = {host: Fraction(random.choice((1, 2, 3, 7))) for host in range(hosts)}
    return tuple(units), Network({device: device // 2 for device in devices}, speed)


def ends(units: tuple[Unit, ...], network: Network) -> list[tuple[int, set[int], set[int]]]:
    """(bytes, holder hosts, target hosts) of the units that leave their hosts."""
    found = []
    for unit in units:
        holders = {network.host_of[device] for device in unit.holders}
        targets = {network.host_of[device] for device in unit.receivers} - holders
        if targets:
            found.append((unit.nbytes, holders, targets))
    return found


def subsets(hosts: list[int]) -> Iterator[set[int]]:
    for size in range(1, len(hosts) + 1):
        yield from (set(chosen) for chosen in combinations(hosts, size))


def test_bounds_are_those_of_the_worst_subset() -> None:
    for seed in range(120):
        units, network = random_units(seed)
        speed = network.bandwidth_bytes_s
        moved = ends(units, network)
        every = list(subsets(sorted(speed)))
        bounds = bounds_of(units, network)
        recv = max(sum(nbytes for nbytes, _, targets in moved if host in targets) / speed[host] for host in speed)
        send = max(
            sum(nbytes for nbytes, holders, _ in moved if holders <= hosts) / sum(speed[host] for host in hosts)
            for hosts in every
        )
        # What a set has to send: once if targets outside of it can pass it on, else to each target.
        relay = max(
            sum(
                nbytes * (len(targets) if targets <= hosts else 1)
                for nbytes, holders, targets in moved
                if holders <= hosts
            )
            / sum(speed[host] for host in hosts)
            for hosts in every
        )
        assert (bounds.recv, bounds.send) == (recv, send)
        assert bounds.bound == max(recv, send, relay)


def test_relaying_adds_nothing_to_the_bound_between_disjoint_hosts() -> None:
    for seed in range(60):
        tensor, network = drawn(seed)
        bounds = bounds_of(units_of([tensor]), network)
        assert bounds.bound == max(bounds.recv, bounds.send)


def test_the_largest_unit_does_not_count_where_units_are_split() -> None:
    # Two holders, two receivers of the same unit: half is sent by each.
    tensor, network = problem((1024, 1024), ((2, 1), "R,R"), ((1, 1), "R,R"), per_host=1)
    faster = {host: BANDWIDTH * (2 if host == 2 else 1) for host in network.bandwidth_bytes_s}
    bounds = bounds_of(units_of([tensor]), Network(network.host_of, faster))
    once = tensor.nbytes / BANDWIDTH
    assert (bounds.recv, bounds.send, bounds.unit) == (once / 2, once / 2, once)
    assert bounds.bound == once / 2


def test_what_stays_inside_hosts_counts_for_nothing() -> None:
    tensor, network = problem((64, 64), ((2, 4), "S0,R"), ((2, 4), "S0,S1"), first=0)
    inside, _ = problem((64, 64), ((2, 4), "S0,S1"), ((2, 4), "S0,R"), first=0)
    for each in (tensor, inside):
        bounds = bounds_of(units_of([each]), network)
        assert (bounds.recv, bounds.send, bounds.relay, bounds.unit) == (0, 0, 0, 0)
