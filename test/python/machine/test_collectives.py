"""Communication times: closed forms, every link's load recounted pair by pair, and what must always hold."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import combinations, product
from math import ceil, inf, log2

import pytest
from alpha_beta import AlphaBeta
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import assert_each_line_is_best_somewhere

from rhino.errors import RhinoError
from rhino.machine import Cluster, Device, Level
from rhino.machine.collectives import CommModel, RingModel, group_seconds, ring_bytes
from rhino.machine.links import Groups, direct_path, mesh_groups, ring_link
from rhino.program.operations import COLLECTIVES

DEVICE = Device("x1", "x1", {"f32": 1e12}, 2**30, 1e12)
V = 1e9


def flat_host(n: int, bandwidth: float = 100e9, latency_s: float = 1e-6) -> Cluster:
    return Cluster("host", 1, n, DEVICE, (Level("link", n, bandwidth, latency_s),))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all-reduce", 2 * 1000 * 7 / 8),
        ("all-gather", 1000 * 7 / 8),
        ("reduce-scatter", 1000 * 7 / 8),
        ("all-to-all", 1000 * 7 / 64),
        ("collective-permute", 1000),
    ],
)
def test_ring_bytes(kind: str, expected: float) -> None:
    assert ring_bytes(kind, 8, 1000) == pytest.approx(expected)
    assert ring_bytes(kind, 1, 1000) == 0


def test_unknown_kind_and_axis() -> None:
    model = RingModel(flat_host(4), (4,))
    with pytest.raises(ValueError, match="unknown collective 'broadcast'; known: all-reduce"):
        ring_bytes("broadcast", 2, 1)
    with pytest.raises(ValueError, match="unknown collective 'broadcast'"):
        model.time("broadcast", (0,), 1)
    with pytest.raises(ValueError, match=r"axes \(1,\) are not axes of a mesh of 1"):
        model.time("all-reduce", (1,), 1)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_closed_forms_within_a_host(n: int) -> None:
    a, b = 1e-6, 100e9
    model = RingModel(flat_host(n, b, a), (n,))
    ring = (n - 1) * a + V * (n - 1) / (n * b)
    assert model.time("all-gather", (0,), V) == pytest.approx(ring)
    assert model.time("reduce-scatter", (0,), V) == pytest.approx(ring)
    assert model.time("all-reduce", (0,), V) == pytest.approx(2 * ring)
    assert model.time("all-to-all", (0,), V) == pytest.approx((n - 1) * a + V * (n - 1) / (n * n * b))
    assert model.time("collective-permute", (0,), V) == pytest.approx(a + V / b)
    # Small messages: NCCL's tree, two hops per doubling.
    assert model.time("all-reduce", (0,), 0) == pytest.approx(2 * min(n - 1, ceil(log2(n))) * a)


def bare(spec: str) -> Cluster:
    """A preset without protocols: its links by the textbook."""
    cluster = Cluster.load(spec)
    return replace(cluster, levels=tuple(replace(level, protocols={}) for level in cluster.levels))


def test_groups_that_share_one_nic_share_its_bandwidth() -> None:
    # 2 hosts x 4 devices, one NIC of 1.25 GB/s: four all-gathers of pairs leave each host through it.
    model = RingModel(bare("p3.8xlarge:2"), (2, 4))
    assert model.axis(0).bandwidth_bytes_s == pytest.approx(1.25e9 / 4)
    assert model.axis(0).levels == ("inter-host",)
    assert model.time("all-gather", (0,), V) == pytest.approx(2.5e-5 + V / 2 / (1.25e9 / 4))
    assert model.axis(1).bandwidth_bytes_s == pytest.approx(100e9)
    assert model.axis(1).levels == ("intra-host",)


def test_as_many_nics_as_devices_are_not_shared() -> None:
    model = RingModel(Cluster.load("dgx-h100:2"), (2, 8))
    assert model.axis(0).bandwidth_bytes_s == pytest.approx(50e9)
    assert model.axis(0).latency_s == 4e-6


def test_rings_use_every_nic_of_a_host() -> None:
    # One group of 16 over 2 hosts: 8 rings, each through a NIC of its own and so with an eighth of the data; 14 hops on
    # NVLink, one between hosts. 8 x 50 GB/s are less than NVLink's 450.
    model = RingModel(bare("dgx-h100:2"), (16,))
    ring = 14 * 1.9e-6 + 4e-6 + V * 15 / 16 / 400e9
    assert model.time("all-gather", (0,), V) == pytest.approx(ring)
    assert model.time("reduce-scatter", (0,), V) == pytest.approx(ring)
    # The double tree has one link between two hosts, each way, in each tree; NVLink is then the slower.
    tree = 2 * (7 * 1.9e-6 + 4e-6) + V * 2 * 15 / 16 / 450e9
    assert model.time("all-reduce", (0,), V) == pytest.approx(tree)
    many = RingModel(bare("dgx-h100:4"), (32,))
    assert many.time("all-reduce", (0,), 1e12) == pytest.approx(2 * (28 * 1.9e-6 + 3 * 4e-6 + 1e12 * 31 / 32 / 400e9))


def test_half_of_the_hosts_members_leave_half_of_the_nics_to_others() -> None:
    # Mesh 4x4 on 2 hosts: an axis-0 group has 2 members per host; 4 groups of 2 rings share 8 NICs.
    model = RingModel(bare("dgx-h100:2"), (4, 4))
    assert model.time("all-gather", (0,), V) == pytest.approx(2 * 1.9e-6 + 4e-6 + V * 3 / 4 / 100e9)
    # One NIC a host: 4 groups of 2 rings queue for it.
    slow = RingModel(bare("p3.16xlarge:2"), (4, 4))
    assert slow.affine("all-gather", (0,))[1] == pytest.approx(4 * 3 / 4 / 3.125e9)


def test_a_hierarchy_is_never_slower_than_one_flat_ring() -> None:
    for spec in ("dgx-h100:4", "dgx-a100:2", "p3.8xlarge:4", "gb200-nvl72:36"):
        cluster = bare(spec)
        n = cluster.num_devices
        hop, slope, _ = ring_link(cluster, mesh_groups((n,), (0,)))
        for kind in ("all-gather", "reduce-scatter", "all-reduce"):
            flat = (2 if kind == "all-reduce" else 1) * (n - 1) * hop + slope * ring_bytes(kind, n, V)
            assert RingModel(cluster, (n,)).time(kind, (0,), V) <= flat


def test_all_to_all_counts_what_leaves_each_host() -> None:
    # 16 devices on 2 hosts: half of each device's 15 messages stay, 8 leave through its own NIC.
    model = RingModel(bare("dgx-h100:2"), (16,))
    assert model.affine("all-to-all", (0,))[1] == pytest.approx(8 / 256 / 50e9)
    # One NIC for four devices: 4 x 4 messages leave through it.
    slow = RingModel(bare("p3.8xlarge:2"), (8,))
    assert slow.affine("all-to-all", (0,))[1] == pytest.approx(16 / 64 / 1.25e9)


def test_oversubscribed_spine_is_the_bottleneck() -> None:
    # Leaves of 2 hosts x 2 devices; each leaf has one uplink for the two NICs below it.
    levels = (
        Level("host", 2, 400e9, 1e-6),
        Level("leaf", 4, 50e9, 2e-6, nics=2),
        Level("spine", 8, 50e9, 3e-6, nics=1),
    )
    model = RingModel(Cluster("fabric", 4, 2, DEVICE, levels), (2, 2, 2))
    assert model.axis(2).bandwidth_bytes_s == pytest.approx(400e9)
    assert model.axis(1).bandwidth_bytes_s == pytest.approx(50e9)
    assert model.axis(0).bandwidth_bytes_s == pytest.approx(50e9 / 4)
    assert model.axis(0).levels == ("leaf", "spine")
    assert model.axis(0).latency_s == 3e-6


def test_pairs_without_a_switch() -> None:
    # NVLink joins pairs only; between pairs, PCIe that both devices of a pair share.
    levels = (Level("pair", 2, 100e9, 1e-6), Level("pcie", 4, 10e9, 5e-6, duplex="half"))
    cluster = Cluster("pairs", 1, 4, DEVICE, levels)
    inner, outer = RingModel(cluster, (2, 2)).axis(1), RingModel(cluster, (2, 2)).axis(0)
    assert (inner.bandwidth_bytes_s, inner.levels) == (pytest.approx(100e9), ("pair",))
    assert (outer.bandwidth_bytes_s, outer.levels) == (pytest.approx(10e9 / 2 / 2), ("pcie",))


def test_axis_that_straddles_hosts_unevenly_is_a_flat_ring() -> None:
    # Rows of 6 devices over hosts of 4: {0..3 | 4,5} and {6,7 | 8..11}; the middle host carries both rings.
    cluster = Cluster("odd", 3, 4, DEVICE, (Level("in", 4, 100e9, 1e-6), Level("out", 0, 10e9, 1e-5)))
    model = RingModel(cluster, (2, 6))
    assert model.axis(1).bandwidth_bytes_s == pytest.approx(5e9)
    assert model.time("all-gather", (1,), V) == pytest.approx(5 * 1e-5 + V * 5 / 6 / 5e9)


def test_one_device_costs_nothing_and_axes_are_a_set() -> None:
    model = RingModel(Cluster.load("dgx-h100:2"), (1, 2, 8))
    for kind in COLLECTIVES:
        assert model.time(kind, (), V) == 0
        assert model.time(kind, (0,), V) == 0
        assert model.affine(kind, (0,)) == (0.0, 0.0)
        assert model.time(kind, (2, 1), V) == model.time(kind, (0, 1, 2, 1), V)
    assert model.axis(0).levels == ()
    assert model.axis(0).bandwidth_bytes_s == inf


def test_without_reduce_scatter_it_costs_and_sends_as_an_all_reduce() -> None:
    model = RingModel(Cluster.load("cpu"), (8,))
    assert not model.reduce_scatter
    assert model.time("reduce-scatter", (0,), V) == model.time("all-reduce", (0,), V)
    assert model.bytes("reduce-scatter", (0,), 800) == 1400
    assert model.lowered("reduce-scatter") == "all-reduce"
    gpu = RingModel(Cluster.load("dgx-h100"), (8,))
    assert gpu.bytes("reduce-scatter", (0,), 800) == 700
    assert gpu.time("reduce-scatter", (0,), V) < gpu.time("all-reduce", (0,), V)


def test_meshes_that_do_not_fit() -> None:
    with pytest.raises(RhinoError, match="mesh 4x4 needs 16 devices and dgx-h100:1 has 8; use a smaller mesh"):
        RingModel(Cluster.load("dgx-h100"), (4, 4))
    with pytest.raises(RhinoError, match=r"mesh sizes \[2, 0\] are not all positive integers"):
        RingModel(Cluster.load("dgx-h100"), (2, 0))
    assert RingModel(Cluster.load("dgx-h100"), (2, 2)).axis(0).size == 2


def test_affine_touches_the_time_at_its_size_and_never_undercuts_it() -> None:
    model = RingModel(Cluster.load("dgx-h100:4"), (4, 8))
    sizes = [0, 1e3, 1e5, 1e6, 1e7, 1e9]
    assert len(model.lines("all-reduce", (0, 1))) > 1
    for at in sizes:
        a, b = model.affine("all-reduce", (0, 1), at)
        assert a + b * at == model.time("all-reduce", (0, 1), at)
        assert all(a + b * v >= model.time("all-reduce", (0, 1), v) for v in sizes)
    a, b = model.affine("all-reduce", (0, 1))
    assert model.time("all-reduce", (0, 1), 1e12) == pytest.approx(a + b * 1e12)


def test_models_survive_pickling_for_worker_processes() -> None:
    for model in (RingModel(Cluster.load("dgx-h100:2"), (2, 8)), AlphaBeta((2, 8), (1, 1), (1, 0.1))):
        expected = model.time("all-reduce", (0,), V)
        assert pickle.loads(pickle.dumps(model)).time("all-reduce", (0,), V) == expected


def test_thousand_devices_are_enumerated() -> None:
    model: CommModel = RingModel(Cluster.load("dgx-h100:128"), (4, 32, 8))
    assert model.sizes == (4, 32, 8)
    times = [model.time("all-reduce", axes, V) for axes in ((2,), (1,), (0,))]
    assert times[0] < times[1] < times[2] * 2


# The reference below recounts everything from single pairs of devices, with no arrays and no formulas per axis.


def groups_of(sizes: tuple[int, ...], axes: tuple[int, ...]) -> list[list[int]]:
    table: dict[tuple[int, ...], list[int]] = {}
    for device, position in enumerate(product(*map(range, sizes))):
        table.setdefault(tuple(p for i, p in enumerate(position) if i not in axes), []).append(device)
    return list(table.values())


def links_of(cluster: Cluster, source: int, target: int) -> list[tuple[int, int]]:
    """(level, unit) of every group of NICs through which a message leaves on its way."""
    below = [1, *(level.size for level in cluster.levels[:-1])]
    joins = next(i for i, level in enumerate(cluster.levels) if source // level.size == target // level.size)
    used = []
    for i, size in enumerate(below):
        beyond_host = size >= cluster.devices_per_host
        if source // size != target // size and (i == joins or (beyond_host and i < joins)):
            used.append((i, source // size))
    return used


def brute_ring(cluster: Cluster, groups: list[list[int]]) -> float:
    """Seconds per byte of the busiest NIC when all groups' rings run at once."""
    rings: dict[tuple[int, int], int] = {}
    for group in groups:
        for source, target in zip(group, [*group[1:], group[0]], strict=True):
            for link in links_of(cluster, source, target):
                rings[link] = rings.get(link, 0) + 1
    return max(
        ceil(count / cluster.levels[i].nics) / cluster.levels[i].exchange_bytes_s for (i, _), count in rings.items()
    )


def brute_exchange(cluster: Cluster, groups: list[list[int]]) -> float:
    """The same for all pairs exchanging 1/n^2 of the tensor; a device sends all it has through one NIC."""
    sent: dict[tuple[int, int], dict[int, int]] = {}
    for group in groups:
        for source, target in product(group, group):
            for link in links_of(cluster, source, target) if source != target else ():
                by_device = sent.setdefault(link, {})
                by_device[source] = by_device.get(source, 0) + 1
    n = len(groups[0])
    return max(
        sum(by.values()) / len(by) * ceil(len(by) / cluster.levels[i].nics) / cluster.levels[i].exchange_bytes_s
        for (i, _), by in sent.items()
    ) / (n * n)


@st.composite
def clusters_with_meshes(draw: st.DrawFn) -> tuple[Cluster, tuple[int, ...]]:
    per_host = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    hosts = draw(st.integers(1, 6))
    rate, nics = st.sampled_from([1e9, 10e9, 300e9]), st.sampled_from([1, 2, 3, 8])
    duplex, latency_s = st.sampled_from(["full", "half"]), st.sampled_from([0.0, 1e-6, 2e-5])
    sizes = [size for size in (2, per_host, per_host * 2) if size < per_host or size % per_host == 0]
    sizes = [size for size in dict.fromkeys(sizes) if per_host % size == 0 or size >= per_host]
    levels = tuple(
        Level(f"l{size}", size, draw(rate), draw(latency_s), draw(nics), draw(duplex)) for size in [*sorted(sizes), 0]
    )
    cluster = Cluster("any", hosts, per_host, DEVICE, levels)
    left, mesh = hosts * per_host, []
    while left > 1 and len(mesh) < 3:
        mesh.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= mesh[-1]
    return cluster, (*mesh, left)


def direct_slope(cluster: Cluster, groups: Groups) -> float:
    """Seconds per byte of the full tensor, of an all-to-all on the busiest link."""
    busiest = max(crossing.seconds_per_byte for crossing in direct_path(cluster, groups))
    return busiest * ring_bytes("all-to-all", groups.shape[1], 1)


def axis_sets(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    live = [axis for axis, size in enumerate(sizes) if size > 1]
    return [axes for count in range(1, len(live) + 1) for axes in combinations(live, count)]


@settings(max_examples=150, deadline=None)
@given(clusters_with_meshes())
def test_links_agree_with_a_recount_of_every_pair(drawn: tuple[Cluster, tuple[int, ...]]) -> None:
    cluster, sizes = drawn
    for axes in axis_sets(sizes):
        groups = mesh_groups(sizes, axes)
        reference = groups_of(sizes, axes)
        assert groups.tolist() == reference
        assert ring_link(cluster, groups)[1] == pytest.approx(brute_ring(cluster, reference))
        assert direct_slope(cluster, groups) == pytest.approx(brute_exchange(cluster, reference))


@settings(max_examples=100, deadline=None)
@given(clusters_with_meshes(), st.floats(0, 1e12), st.floats(0, 1e12))
def test_times_grow_with_bytes_and_no_choice_is_worse_than_the_flat_ring(
    drawn: tuple[Cluster, tuple[int, ...]], first: float, second: float
) -> None:
    cluster, sizes = drawn
    model = RingModel(cluster, sizes)
    small, large = sorted((first, second))
    for axes in axis_sets(sizes):
        groups = mesh_groups(sizes, axes)
        n = groups.shape[1]
        hop, slope, _ = ring_link(cluster, groups)
        for kind in COLLECTIVES:
            low, high = model.time(kind, axes, small), model.time(kind, axes, large)
            assert 0 <= low <= high
            assert_each_line_is_best_somewhere(model.lines(kind, axes))
        for kind, rounds in (("all-reduce", 2 * (n - 1)), ("all-gather", n - 1), ("reduce-scatter", n - 1)):
            assert model.time(kind, axes, large) <= (rounds * hop + slope * ring_bytes(kind, n, large)) * (1 + 1e-12)
        hop = max(cluster.levels[crossing.level].latency_s for crossing in direct_path(cluster, groups))
        direct = (n - 1) * hop + direct_slope(cluster, groups) * large
        assert model.time("all-to-all", axes, large) <= direct * (1 + 1e-12)


@settings(max_examples=100, deadline=None)
@given(clusters_with_meshes(), st.floats(1, 1e12))
def test_an_all_reduce_is_never_dearer_than_its_two_halves(
    drawn: tuple[Cluster, tuple[int, ...]], nbytes: float
) -> None:
    cluster, sizes = drawn
    model = RingModel(cluster, sizes)
    for axes in axis_sets(sizes):
        halves = model.time("reduce-scatter", axes, nbytes) + model.time("all-gather", axes, nbytes)
        assert model.time("all-reduce", axes, nbytes) <= halves * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(clusters_with_meshes())
def test_more_bandwidth_never_hurts(drawn: tuple[Cluster, tuple[int, ...]]) -> None:
    cluster, sizes = drawn
    faster = replace(
        cluster, levels=tuple(replace(v, bandwidth_bytes_s=2 * v.bandwidth_bytes_s) for v in cluster.levels)
    )
    for axes in axis_sets(sizes):
        for kind in COLLECTIVES:
            slow = RingModel(cluster, sizes).time(kind, axes, V)
            assert slow / 2 * (1 - 1e-9) <= RingModel(faster, sizes).time(kind, axes, V) <= slow * (1 + 1e-9)


@pytest.mark.parametrize(("name", "n"), [("p3.16xlarge:8", 8), ("dgx-h100:8", 8), ("dgx-a100:2", 4)])
def test_axes_that_change_places_send_between_hosts_what_pairs_of_devices_do(name: str, n: int) -> None:
    cluster = Cluster.load(name)
    pairs = sorted({tuple(sorted((n * i + j, n * j + i))) for i in range(n) for j in range(n) if i != j})
    told = RingModel(cluster, (n, n)).time("collective-permute", (0, 1), 5e7)
    assert told == pytest.approx(group_seconds(cluster, "collective-permute", pairs, 5e7), rel=0.03)
