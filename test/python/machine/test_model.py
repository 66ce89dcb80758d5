"""`Cluster` as a value: derived names and sizes, rates by type, plain data and back, digests."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhino.errors import RhinoError
from rhino.machine import Cluster, Device, Efficiency, Level

DEVICE = Device("h100", "h100", {"f32": 60e12, "tf32": 480e12, "bf16": 960e12, "f16": 900e12}, 80 * 2**30, 3e12)
LEVELS = (Level("intra-host", 8, 450e9, 2e-6), Level("inter-host", 8, 50e9, 4e-6, nics=8))


def make(hosts: int = 1, per_host: int = 8, levels: tuple[Level, ...] = LEVELS) -> Cluster:
    return Cluster("lab", hosts, per_host, DEVICE, levels)


def test_name_and_last_level_follow_the_number_of_hosts() -> None:
    one = make()
    four = one.with_hosts(4)
    assert (one.name, four.name) == ("lab:1", "lab:4")
    assert (one.base_name, four.base_name) == ("lab", "lab")
    assert (one.num_devices, four.num_devices) == (8, 32)
    assert [level.size for level in four.levels] == [8, 32]
    assert four.with_hosts(1) == one


def test_further_levels_keep_their_size_when_the_cluster_is_small() -> None:
    levels = (LEVELS[0], Level("leaf", 32, 50e9, 4e-6, nics=8), Level("spine", 0, 50e9, 5e-6, nics=16))
    two = make(hosts=2, levels=levels)
    assert [level.size for level in two.levels] == [8, 32, 16]
    assert [level.size for level in two.with_hosts(16).levels] == [8, 32, 128]


def test_levels_around_a_host_are_found() -> None:
    cluster = make(hosts=2)
    assert cluster.intra_host == cluster.levels[0]
    assert cluster.inter_host == cluster.levels[1]
    pairs = make(levels=(Level("pair", 2, 9e9, 1e-6), Level("host", 8, 1e9, 1e-6), Level("net", 0, 1e9, 1e-6)))
    assert pairs.intra_host is not None
    assert pairs.intra_host.name == "host"
    assert pairs.inter_host is not None
    assert pairs.inter_host.name == "net"
    alone = make(levels=LEVELS[:1])
    assert alone.inter_host is None
    workstations = make(hosts=3, per_host=1, levels=(Level("ethernet", 0, 1e9, 1e-5),))
    assert workstations.inter_host == workstations.levels[0]


@pytest.mark.parametrize("hosts", [0, -1, 1.5, True, "2"])
def test_hosts_must_be_a_positive_integer(hosts: object) -> None:
    with pytest.raises(RhinoError, match=r"cluster lab: hosts: .* is not a positive integer; give 1 or more hosts"):
        make().with_hosts(hosts)  # type: ignore[arg-type]


def test_hosts_need_a_link_between_them() -> None:
    with pytest.raises(RhinoError, match="levels do not join its 2 hosts; add a level after one of size 8"):
        make(levels=LEVELS[:1]).with_hosts(2)
    with pytest.raises(RhinoError, match="no level of links"):
        make(levels=())


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bf16", 960e12),
        ("f16", 900e12),
        ("f32", 60e12),
        ("tf32", 480e12),
        ("f64", 30e12),
        ("f8E4M3FN", 900e12),
        ("f4E2M1FN", 900e12),
        ("i8", 60e12),
        ("ui8", 60e12),
        ("i1", 60e12),
        ("i32", 60e12),
        ("complex<f32>", 60e12),
        ("complex<f64>", 30e12),
    ],
)
def test_peak_of_a_type_without_a_rate_is_that_of_the_type_it_runs_as(dtype: str, expected: float) -> None:
    assert DEVICE.peak(dtype) == expected


def test_own_rates_win_over_fallbacks() -> None:
    device = replace(DEVICE, peak_flops={"f32": 1.0, "f64": 7.0, "f8": 8.0, "i8": 9.0})
    assert [device.peak(dtype) for dtype in ("f64", "f8E5M2", "i8", "i4", "i16", "bf16")] == [7, 8, 9, 9, 1, 1]


def test_matmuls_of_f32_run_in_tf32_where_there_is_any() -> None:
    assert DEVICE.matmul_peak("f32") == 480e12
    assert DEVICE.matmul_peak("bf16") == 960e12
    assert DEVICE.matmul_peak("f64") == 30e12
    assert replace(DEVICE, peak_flops={"f32": 15.7e12}).matmul_peak("f32") == 15.7e12


def test_half_duplex_halves_what_a_ring_gets() -> None:
    level = Level("bus", 4, 10e9, 1e-6)
    assert level.exchange_bytes_s == 10e9
    assert replace(level, duplex="half").exchange_bytes_s == 5e9


def test_nearest_source_covers_a_field() -> None:
    cluster = replace(make(), sources={"device": "sheet", "device.memory_bytes": "driver"})
    assert cluster.source_of("device.peak_flops.bf16") == "sheet"
    assert cluster.source_of("device.memory_bytes") == "driver"
    assert cluster.source_of("levels.inter-host.nics") == ""


RATES = st.floats(1e3, 1e18, allow_nan=False)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any valid cluster: pairs or not inside hosts, leaves or not beyond them."""
    pairs, per_pair, leaf = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(2, 4))
    per_host = pairs * per_pair
    sizes = [per_pair] if pairs > 1 and per_pair > 1 else []
    sizes += [per_host, *draw(st.sampled_from([[], [per_host * leaf]])), 0]
    duplex = st.sampled_from(["full", "half"])
    levels = tuple(
        Level(f"l{i}", size, draw(RATES), draw(st.floats(0, 1)), draw(st.integers(1, 16)), draw(duplex))
        for i, size in enumerate(sizes)
    )
    rates = {"f32": draw(RATES), **draw(st.dictionaries(st.sampled_from(["f64", "bf16", "f8"]), RATES))}
    fraction = st.floats(0.01, 1)
    return Cluster(
        name="any",
        hosts=draw(st.integers(1, 9)),
        devices_per_host=per_host,
        device=Device("x1", "x1", rates, draw(st.integers(1, 10**13)), draw(RATES)),
        levels=levels,
        reduce_scatter=draw(st.booleans()),
        efficiency=Efficiency(draw(fraction), draw(fraction)),
        description=draw(st.sampled_from(["", "on: 'the' bench #3", "été"])),
        sources=draw(st.sampled_from([{}, {"device": "a sheet: page 3", "levels.l0.nics": "lspci"}])),
    )


@given(clusters())
def test_plain_data_and_yaml_give_the_same_cluster_back(tmp_path_factory: pytest.TempPathFactory, c: Cluster) -> None:
    assert Cluster.from_dict(c.to_dict()) == c
    path = tmp_path_factory.mktemp("yaml") / "c.yaml"
    c.save(path)
    assert Cluster.load(path) == c
    assert Cluster.load(path).digest() == c.digest()


def test_digest_is_fixed_across_processes_and_versions() -> None:
    # A digest is stored in plans: this value may change only together with the schema's version.
    known = "65438bc6b2b22103bc8565a8de873dbe40bb1c50ded8dea7534fa668b723acad"
    assert make().digest() == known


def test_digest_follows_every_value_but_not_prose() -> None:
    base = make(hosts=2)
    assert replace(base, description="x", sources={"device": "y"}).digest() == base.digest()
    changed = [
        replace(base, name="other"),
        base.with_hosts(3),
        replace(base, device=replace(DEVICE, memory_bytes=1)),
        replace(base, device=replace(DEVICE, peak_flops={"f32": 1.0})),
        replace(base, levels=(replace(LEVELS[0], latency_s=0.0), LEVELS[1])),
        replace(base, reduce_scatter=False),
        replace(base, efficiency=Efficiency(0.5)),
    ]
    assert len({cluster.digest() for cluster in [base, *changed]}) == len(changed) + 1


def test_integer_and_float_spellings_have_one_digest() -> None:
    data = make().to_dict()
    data["device"]["memory_bandwidth_bytes_s"] = 3 * 10**12
    assert Cluster.from_dict(data).digest() == make().digest()


def test_save_says_when_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(RhinoError, match="cannot write: No such file or directory; give a path"):
        make().save(tmp_path / "none" / "c.yaml")


def test_loading_a_preset_imports_neither_jax_nor_mlir() -> None:
    code = (
        "import sys; from rhino.machine import Cluster; from rhino.machine.collectives import RingModel; "
        "RingModel(Cluster.load('dgx-h100:4'), (4, 8)).time('all-reduce', (0,), 1e6); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_a_limited_cluster_gives_plans_so_much_and_no_more() -> None:
    whole = Cluster.load("dgx-h100:2")
    for nbytes in (1, 10**9 + 7, 40 << 30):
        limited = whole.limited(nbytes)
        assert limited.device.plan_bytes == pytest.approx(nbytes, abs=2)
        assert limited.device.plan_bytes >= nbytes
        assert limited.levels == whole.levels
    assert whole.limited(0) is whole.limited(whole.device.plan_bytes) is whole.limited(1 << 60) is whole
