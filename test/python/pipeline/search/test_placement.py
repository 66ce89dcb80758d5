"""Blocks of devices, the links between them, and the shapes of pipelines over a cluster."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod

import pytest

from rhino.errors import RhinoError
from rhino.machine import Cluster
from rhino.pipeline.search.candidates import Shape, shapes, widths
from rhino.pipeline.search.placement import Placement, part_of
from rhino.pipeline.search.spread import Spread
from rhino.program.data import Graph
from rhino.reshard.bounds import bounds_of
from rhino.reshard.data import MovedTensor, Network
from rhino.reshard.tiles import spec_tiles
from rhino.reshard.units import units_of

V100S = Cluster.load("p3.16xlarge:8")
NIC_BYTES_S, NVLINK_BYTES_S = 3.125e9, 150e9


def test_part_of_a_host_keeps_the_link_inside_it() -> None:
    part = part_of(V100S, 4)
    assert (part.hosts, part.devices_per_host, part.num_devices) == (1, 4, 4)
    assert part.intra_host is not None and part.intra_host.bandwidth_bytes_s == NVLINK_BYTES_S


def test_whole_hosts_keep_the_link_between_them() -> None:
    part = part_of(V100S, 16)
    assert (part.hosts, part.devices_per_host) == (2, 8)
    assert part.inter_host is not None and part.inter_host.size == 16


def test_transfers_cross_the_nic_or_stay_in_the_host() -> None:
    placed = Placement.of(V100S, 16)
    nbytes = 3.125e9
    assert placed.same_host(0, 1) and not placed.same_host(1, 2)
    # Inside, four devices send a quarter each; across, the host's one NIC carries all.
    assert placed.transfer_s(0, 1, nbytes) == pytest.approx(nbytes / (4 * NVLINK_BYTES_S), rel=1e-3)
    assert placed.transfer_s(1, 2, nbytes) == pytest.approx(1.0, rel=1e-3)
    assert placed.transfer_s(0, 0, nbytes) == 0.0


def test_stages_of_several_hosts_send_by_all_their_nics() -> None:
    placed = Placement.of(V100S, 2)
    assert list(placed.hosts_of(1)) == [4, 5, 6, 7]
    assert placed.transfer_s(0, 1, 3.125e9) == pytest.approx(0.25, rel=1e-3)


def test_rates_are_the_start_and_the_bytes_of_transfers() -> None:
    for groups in (2, 4, 16):  # whole hosts, and halves of them
        placed = Placement.of(V100S, groups)
        start_s, byte_s = placed.rates(1e6)
        for a, b in product(range(groups), repeat=2):
            assert start_s[a][b] + byte_s[a][b] == pytest.approx(placed.transfer_s(a, b, 1e6))
            assert (start_s[a][b] == byte_s[a][b] == 0.0) == (a == b)


@pytest.mark.parametrize(("stages", "nics"), [(2, 4), (8, 1), (16, 1)])
def test_stages_are_cut_for_all_nics_of_their_hosts(stages: int, nics: int) -> None:
    machine = Placement.of(V100S, stages).machine(Graph().microbatches, "1f1b")
    assert machine.byte_s[0][stages - 1] == pytest.approx(1 / (nics * NIC_BYTES_S), rel=1e-6)
    assert machine.in_flight == (1,) * stages  # without a loop there is one micro-batch


def test_blocks_of_one_host_share_its_nic() -> None:
    placed = Placement.of(V100S, 16)
    assert placed.links(0, 2) == placed.links(1, 3) == ("nic0>", ">nic1")
    assert placed.links(0, 1) != placed.links(1, 0)
    assert set(placed.links(1, 2)).isdisjoint(placed.links(2, 1))
    # A skip shares the NIC it leaves by, wherever it goes.
    assert set(placed.links(1, 2)) & set(placed.links(0, 5)) == {"nic0>"}


@pytest.mark.parametrize(
    ("spec", "groups", "split", "share"),
    [
        ("p3.16xlarge:4", 2, (True, True), 1 / 2),
        ("p3.16xlarge:4", 2, (True, False), 1 / 2),  # copies within a host are made there
        ("p3.16xlarge:4", 2, (False, True), 1.0),  # both hosts need all of it
        ("p3.16xlarge:4", 2, (False, False), 1.0),
        ("p3.16xlarge:2", 2, (True, False), 1.0),
    ],
)
def test_hosts_receive_what_their_devices_need_once(
    spec: str, groups: int, split: tuple[bool, ...], share: float
) -> None:
    placed = Placement.of(Cluster.load(spec), groups)
    target = Spread((placed.widths[1] // 8, 8), split)
    assert placed.transfer_s(0, 1, 3.125e9, target) == pytest.approx(share, rel=3e-2)


def test_devices_of_a_host_receive_what_each_needs() -> None:
    placed = Placement.of(Cluster.load("p3.16xlarge:1"), 2)
    nbytes = 150e9
    assert placed.transfer_s(0, 1, nbytes, Spread((4,), (True,))) == pytest.approx(1 / 4, rel=1e-3)
    assert placed.transfer_s(0, 1, nbytes, Spread((4,), (False,))) == pytest.approx(1.0, rel=1e-3)
    assert placed.transfer_s(0, 1, nbytes, Spread((2, 2), (False, True))) == pytest.approx(1 / 2, rel=1e-3)


def test_a_chain_of_hosts_takes_the_latency_of_its_chunks() -> None:
    cluster = Cluster.load("p3.16xlarge:4")
    placed = Placement.of(cluster, 2)
    assert cluster.inter_host is not None
    start, whole = cluster.inter_host.latency_s, 3.125e9 / NIC_BYTES_S
    found = placed.transfer_s(0, 1, 3.125e9, Spread((2, 8), (False, True)))
    best = min((k + 1) * (start + whole / k) for k in range(1, 2000))
    assert whole < found <= best and found == pytest.approx(best, rel=1e-6)
    # A byte is one chunk: it waits for as many messages as there are hosts.
    assert placed.transfer_s(0, 1, 1, Spread((2, 8), (False, True))) == pytest.approx(2 * start, rel=1e-3)


def _bound(target: Spread, senders: Spread, per_host: int) -> float:
    """The bound by the units themselves; in a second a host sends the whole tensor."""
    axes = range(len(target.mesh))
    shape = tuple(a * b for a, b in zip(senders.mesh, target.mesh, strict=True))
    tiles = [
        spec_tiles(shape, s.mesh, [f"S{a}" if s.split[a] else "R" for a in axes], first)
        for s, first in ((senders, 0), (target, prod(senders.mesh)))
    ]
    hosts = {tile.device: tile.device // per_host for tile in (*tiles[0], *tiles[1])}
    network = Network(hosts, dict.fromkeys(hosts.values(), Fraction(prod(shape))))
    return float(bounds_of(units_of([MovedTensor(shape, 1, *tiles)]), network).bound)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("source", "target"),
    [((2, 4), (2, 4)), ((1, 4), (3, 4)), ((4, 2), (2, 8)), ((3, 2, 2), (1, 2, 2)), ((2, 2, 4), (4, 2, 2))],
)
def test_the_price_is_the_bound_of_the_resharding(
    source: tuple[int, ...], target: tuple[int, ...], inside: bool
) -> None:
    base = Cluster.load("p3.8xlarge:1")  # four devices on a host
    free = tuple(replace(level, latency_s=0.0) for level in Cluster.load("p3.8xlarge:2").levels)
    for splits in product((False, True), repeat=len(source)):
        for lies in product((False, True), repeat=len(target)):
            a, b = Spread(source, splits), Spread(target, lies)
            devices = prod(source) + prod(target)
            if inside:
                one = replace(base, devices_per_host=devices, levels=(replace(free[0], size=devices),))
                placed, per_host = Placement(one, (prod(source), prod(target))), 1
                rate = free[0].bandwidth_bytes_s
            else:
                many = replace(base, hosts=devices // 4, levels=free)
                placed, per_host = Placement(many, (prod(source), prod(target))), 4
                rate = free[1].bandwidth_bytes_s
            found = placed.transfer_s(0, 1, rate, b)
            assert found == pytest.approx(_bound(b, a, per_host)), (a, b)


@pytest.mark.parametrize("groups", [0, 65])
def test_groups_without_devices_are_refused(groups: int) -> None:
    with pytest.raises(RhinoError, match=f"{groups} stages for the 64 devices of p3.16xlarge:8"):
        Placement.of(V100S, groups)


@pytest.mark.parametrize(
    ("spec", "groups", "widths"),
    [
        ("dgx-h100:1", 3, (3, 3, 2)),
        ("dgx-h100:1", 5, (2, 2, 2, 1, 1)),
        ("dgx-h100:1", 4, (2, 2, 2, 2)),
        ("dgx-h100:2", 3, (8, 4, 4)),  # not 6+5+5: stage 1 would have parts of two hosts
        ("dgx-h100:2", 6, (3, 3, 2, 3, 3, 2)),
        ("dgx-h100:3", 2, (16, 8)),
        ("dgx-h100:3", 8, (4, 4, 3, 3, 2, 3, 3, 2)),
    ],
)
def test_devices_are_dealt_in_parts_of_hosts_and_whole_hosts(spec: str, groups: int, widths: tuple[int, ...]) -> None:
    placed = Placement.of(Cluster.load(spec), groups)
    assert placed.widths == widths
    assert [d for g in range(groups) for d in placed.devices_of(g)] == list(range(placed.cluster.num_devices))
    for group, width in enumerate(widths):
        hosts = len(placed.hosts_of(group))
        assert hosts == 1 if width < 8 else hosts * 8 == width


def test_transfers_between_groups_of_different_widths() -> None:
    nbytes = 3.125e9
    inside = Placement.of(Cluster.load("p3.16xlarge:1"), 3)
    # Two devices receive what three could send.
    assert inside.transfer_s(1, 2, nbytes) == pytest.approx(nbytes / (2 * NVLINK_BYTES_S), rel=1e-3)
    assert inside.transfer_s(0, 1, nbytes) == pytest.approx(nbytes / (3 * NVLINK_BYTES_S), rel=1e-3)
    across = Placement.of(Cluster.load("p3.16xlarge:3"), 2)  # two hosts, and one
    assert across.transfer_s(0, 1, nbytes) == pytest.approx(1.0, rel=1e-3)
    assert across.transfer_s(1, 0, nbytes) == pytest.approx(1.0, rel=1e-3)


def test_widths_are_parts_of_hosts_or_hosts() -> None:
    assert widths(V100S) == [1, 2, 4, 8, 16, 32, 64]
    assert widths(Cluster.load("dgx-h100:3")) == [1, 2, 4, 8, 24]


def test_shapes_use_every_device_and_divide_the_batch() -> None:
    found = list(shapes(V100S, 32))
    assert Shape((4,) * 16, 1, 32) in found
    assert len(set(found)) == len(found)
    for shape in found:
        assert shape.stages * shape.replicas * shape.width == 64
        assert 32 % shape.parts == 0 and shape.parts % shape.replicas == 0


def test_what_the_user_asks_for_is_kept() -> None:
    found = list(shapes(V100S, 32, stages=4, microbatches=8))
    assert found and all(s.stages == 4 and s.microbatches == 8 for s in found)


def test_stages_are_unequal_only_where_their_number_must_be() -> None:
    host = Cluster.load("dgx-h100:1")
    assert {s.widths for s in shapes(host, 8, stages=4)} == {(1,) * 4, (2,) * 4}
    found = list(shapes(host, 8, stages=3))
    assert {(s.widths, s.replicas) for s in found} == {((3, 3, 2), 1)}
    assert {s.parts for s in found} == {1, 2, 4, 8}
    assert (found[-1].devices, found[-1].distinct, found[-1].width) == (8, (3, 2), 3)
    assert found[-1].name == "3 stages of 3+3+2, 8 micro-batches"
    assert all(len(s.distinct) == 1 for s in shapes(host, 8))
    assert {s.stages for s in shapes(host, 8, uneven=True)} == {3, 5, 6, 7}
    assert list(shapes(host, 8, stages=9)) == []
