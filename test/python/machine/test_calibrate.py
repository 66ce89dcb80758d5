"""Calibration: the fit recovers a known link; the experiments run here on virtual CPU devices, small."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhino.machine import Cluster
from rhino.machine.calibrate import fit_link, with_kernels
from rhino.machine.collectives import RingModel, group_seconds, ring_bytes
from rhino.machine.effort import CPU
from rhino.machine.experiments import DeviceBench, Sample
from rhino.machine.host_experiments import starting
from rhino.machine.kernel_experiments import (
    MeasuredElements,
    attention,
    convolution_share,
    convolutions,
    element_rates,
    elements,
)
from rhino.machine.links import mesh_groups
from rhino.machine.profiled import kernels_of
from rhino.machine.protocol_fit import with_hosts_joined, with_protocols
from rhino.machine.protocols import Protocol
from rhino.machine.rates import HostRates, ProductRates
from rhino.program.operations import COLLECTIVES

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)


def samples(n: int, latency_s: float, bandwidth: float) -> list[Sample]:
    """Times that follow the ring model exactly."""
    rounds = {"all-reduce": 2 * (n - 1), "all-gather": n - 1}
    return [(k, v, rounds[k] * latency_s + ring_bytes(k, n, v) / bandwidth) for k in rounds for v in SIZES]


@given(n=st.integers(2, 64), latency_s=st.floats(1e-7, 1e-3), bandwidth=st.floats(1e8, 1e12))
def test_fit_recovers_the_link_that_made_the_samples(n: int, latency_s: float, bandwidth: float) -> None:
    found_latency_s, found_bandwidth = fit_link(samples(n, latency_s, bandwidth), n)
    for kind, nbytes, seconds in samples(n, found_latency_s, found_bandwidth):
        expected = {(k, v): t for k, v, t in samples(n, latency_s, bandwidth)}[kind, nbytes]
        assert seconds == pytest.approx(expected, rel=1e-5)


@given(st.lists(st.floats(1e-6, 1.0), min_size=8, max_size=8))
def test_fit_of_any_times_is_a_link_that_can_exist(times: list[float]) -> None:
    noisy = [(kind, nbytes, t) for (kind, nbytes, _), t in zip(samples(8, 1e-6, 1e9), times, strict=True)]
    latency_s, bandwidth = fit_link(noisy, 8)
    assert latency_s >= 0
    assert 0 < bandwidth < float("inf")


SCRIPT = """
import sys
from dataclasses import replace
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
from rhino.machine.calibrate import calibrate
from rhino.machine.effort import Experiments
seen = []
cluster = calibrate("bench", Experiments(32, 1 << 16, (1 << 10, 1 << 16), 0.0), lambda *at: seen.append(at))
assert [done for _, done, _ in seen] == list(range(len(seen))), seen
assert seen[-1][1] == seen[-1][2] == len(seen) - 1, seen
cluster.save(sys.argv[1])
"""


@pytest.mark.parametrize("n", [1, pytest.param(3, marks=pytest.mark.long)])
def test_measured_file_loads_and_holds_plausible_values(tmp_path: Path, n: int) -> None:
    path = tmp_path / "bench.yaml"
    subprocess.run([sys.executable, "-c", SCRIPT, str(path), str(n)], check=True, timeout=120)
    cluster = Cluster.load(path)
    assert (cluster.name, cluster.num_devices, cluster.device.xla_target) == ("bench:1", n, "cpu")
    assert {"f32", "f64", "bf16", "f16"} <= set(cluster.device.peak_flops)
    assert all(1e6 < rate < 1e15 for rate in cluster.device.peak_flops.values())
    assert 1e6 < cluster.device.memory_bandwidth_bytes_s < 1e14
    assert 1e4 < cluster.levels[0].bandwidth_bytes_s < 1e14
    assert not cluster.reduce_scatter
    for path_of_value in ("device.peak_flops.f32", "device.memory_bytes", "levels.intra-host.latency_s"):
        assert cluster.source_of(path_of_value)


GROUPS = """
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
from rhino.machine.effort import Experiments
from rhino.machine.experiments import DeviceBench
from rhino.program.operations import COLLECTIVES
bench = DeviceBench(jax.devices(), Experiments(32, 1 << 16, (), 0.0), 2)
print([bench.collective(kind, 1 << 12, True)[:2] for kind in COLLECTIVES])
"""


def test_collectives_of_all_kinds_run_in_groups() -> None:
    # Calibration times them on GPUs; the experiments run here, too.
    done = subprocess.run([sys.executable, "-c", GROUPS], check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout.strip() == repr([(kind, 1 << 12) for kind in COLLECTIVES])


def test_measured_collectives_become_protocols() -> None:
    before = Cluster.load("dgx-h100")
    ring = replace(before, levels=tuple(replace(level, protocols={}) for level in before.levels))
    sizes = [4**i for i in range(6, 15)]
    measured = [
        (k, n, v, RingModel(before, (n,)).time(k, (0,), v)) for k in COLLECTIVES for n in (2, 4, 8) for v in sizes
    ]
    found = with_protocols(ring, measured, "measured here")
    assert 300e9 < found.levels[0].bandwidth_bytes_s < 450e9
    for kind, n, nbytes, seconds in measured:
        assert RingModel(found, (n,)).time(kind, (0,), nbytes) == pytest.approx(seconds, rel=0.15)
    assert found.source_of("levels.intra-host.protocols") == "measured here, groups of 2, 4, 8"
    assert Cluster.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("per_host", [1, 2])
def test_links_between_hosts_are_recovered_from_the_times_that_they_make(per_host: int) -> None:
    hosts, kinds = 4, [kind for kind in COLLECTIVES if kind != "reduce-scatter"]
    cpu = Cluster.load("cpu")
    first = replace(cpu.levels[0], size=per_host)
    one = replace(cpu, devices_per_host=per_host, levels=(first,))
    ways = {kind: (Protocol(launch_s=1e-3 * n, hop_s=2e-4, share=1 / (1 + n)),) for n, kind in enumerate(kinds)}
    link = replace(cpu.levels[1], size=hosts * per_host, bandwidth_bytes_s=25e6, protocols=ways)
    there = replace(one, hosts=hosts, levels=(first, link))
    # All devices, and one of each host.
    sizes = {(hosts, per_host): (0, 1), (hosts, per_host, 1): (0,)} if per_host > 1 else {(hosts, 1): (0, 1)}
    measured = [
        (kind, groups, nbytes, group_seconds(there, kind, groups.tolist(), nbytes))
        for kind in kinds
        for groups in (mesh_groups(mesh, axes) for mesh, axes in sizes.items())
        for nbytes in (4 << 10, 256 << 10, 8 << 20)
    ]
    found = with_hosts_joined(one, hosts, measured, "measured here")
    assert found.inter_host is not None
    assert found.inter_host.bandwidth_bytes_s == pytest.approx(25e6, rel=0.01)
    for kind, groups, nbytes, seconds in measured:
        assert group_seconds(found, kind, groups.tolist(), nbytes) == pytest.approx(seconds, rel=0.02)
    assert found.source_of("levels.inter-host").startswith("measured here")
    assert Cluster.from_dict(found.to_dict()) == found


def bench_here(**changes: Any) -> DeviceBench:
    """One CPU device, and experiments that take no time."""
    import jax

    return DeviceBench(jax.devices("cpu")[:1], replace(CPU, seconds=0.0, **changes))


def test_attention_is_timed_where_it_runs() -> None:
    """Fused attention needs a GPU; the experiment itself runs here with XLA's own attention."""
    bench = bench_here(attention=((64, 1024, False), (64, 2048, True)))
    found = attention(bench, "xla", tokens=128)
    rows = 128 * 2, 128 * 1
    for way, products in ("forward", 4), ("backward", 10):
        sizes = [sample[:3] for sample in found[way]]
        assert sizes == [
            (products * r * 64 / c * h, r * 64 / c, r) for r, h, c in zip(rows, (1024, 2048), (1, 2), strict=True)
        ]
        assert all(seconds > 0 for *_, seconds in found[way])
    assert attention(bench, tokens=128) == {}


def test_rates_of_elements_are_those_that_their_experiments_say() -> None:
    measured = MeasuredElements(power_s=5.7e-12, softmax_s=5e-12, width=1024, to_many_s=1.6e-4, to_few_s=7e-3)
    rates = element_rates(measured, memory_bytes_s=4e12)
    assert rates.operation_s == pytest.approx(1e-13)
    assert rates.row_exponential_s == pytest.approx(1e-12)
    # 16,384 rows of 1,024, 1,024 of them to each of 16 rows.
    assert rates.addition_s == pytest.approx(1.6e-4 / 2**24)
    assert rates.clash_s == pytest.approx((7e-3 - 1.6e-4) / 1023)


def test_what_the_host_takes_is_timed() -> None:
    found = starting(kernels=(6, 60), arrays=(10, 300))
    # Of a CPU's programs arrays alone are handed over by a host.
    assert 0 < found.array_s < 1e-3
    assert all(0 <= seconds < 1e-2 for seconds in (found.kernel_s, found.apart_s, found.graph_s))


def test_elements_are_timed() -> None:
    """They are of GPUs; the experiments run here, small."""
    measured = elements(bench_here(stream_bytes=1 << 18))
    assert min(measured.power_s, measured.softmax_s, measured.to_many_s, measured.to_few_s) > 0


def test_convolutions_that_take_as_long_as_products_have_all_of_their_rate() -> None:
    rates = ProductRates(start_s=1e-5, tile_s=0.0, tile_depth_s=1e-9, depth_s=0.0)
    through, of_kernel = (8192.0, 64.0, 576.0), (576.0, 64.0, 8192.0)
    made = (through, through, of_kernel)
    # Tiles of 64 x 64 on one multiprocessor; long sums of few of them are not cut where there is no other.
    working_s = (128 * 576 * 2 + 9 * 8192) * 1e-9
    assert convolution_share([(made, 3e-5 + working_s)], rates, 1) == pytest.approx(1.0)
    assert convolution_share([(made, 3e-5 + 4 * working_s)], rates, 1) == pytest.approx(0.25)
    assert convolution_share([(made, 1e-6)], rates, 1) == 1.0
    ((sizes, seconds),) = convolutions(bench_here(convolutions=((2, 4, 8),)), "float32")
    assert sizes == ((32, 8, 72), (32, 8, 72), (72, 8, 32))
    assert seconds > 0


@pytest.mark.parametrize("gpu, seconds", [(True, 2e-3), (False, 3e-3)])
def test_of_runs_the_least_counts_on_gpus_and_the_median_on_cpus(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, seconds: float
) -> None:
    bench = bench_here()
    bench.gpu = gpu
    # The first run warms up, the second says how many to make.
    runs = iter((50e-3, 10e-3, 3e-3, 9e-3, 2e-3, 3e-3, 4e-3))
    monkeypatch.setattr(bench, "_clocked", lambda *_: lambda count: next(runs))
    assert bench.seconds(lambda x: x, (1,), float, 1) == pytest.approx(seconds)


def test_what_products_leave_in_a_step_that_lasts_is_without_what_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four products of 1 ms take 5 ms in the end, beside 2 ms in which memory moves."""
    bench = bench_here(lasting_s=0.1, matrix=128, stream_bytes=1 << 20)
    share = bench.lasting()
    assert share is not None and 0 < share <= 1  # it runs
    monkeypatch.setattr(bench, "matmul", lambda dtype: 2.0 * 128**3 / 1e-3)
    monkeypatch.setattr(bench, "memory", lambda: 2.0 * (1 << 20) / 0.5e-3)
    counts: list[int] = []

    def run(count: int) -> float:
        counts.append(count)
        return 7e-3 if len(counts) > 3 else 6e-3

    monkeypatch.setattr(bench, "_clocked", lambda *_: run)
    assert bench.lasting() == pytest.approx(0.8)
    assert counts == [1, 1, 13, 4]
    # On a busy host memory alone took longer than both together.
    monkeypatch.setattr(bench, "memory", lambda: 2.0 * (1 << 20) / 4e-3)
    assert bench.lasting() == 1.0
    # A device that runs no bf16 has no such share, and is calibrated without.
    monkeypatch.setattr(bench, "matmul", lambda dtype: None)
    assert bench.lasting() is None


def test_products_and_launches_are_timed_and_kept(tmp_path: Path) -> None:
    """Products by shape are of GPUs; the experiments run here on a CPU, small."""
    shapes = tuple((b, m, n, 64) for b in (1, 2) for m in (32, 64) for n in (32, 128))
    ways = ("nn", "nt", "tn")
    bench = bench_here(products=shapes, ways=ways)
    measured = bench.products("f32")
    assert [sizes[:4] for sizes in measured] == [sizes for sizes in shapes for _ in ways]
    assert all(seconds > 0 for *_, seconds in measured)
    launch_s = bench.launch()
    assert 0 < launch_s < 1
    a100 = Cluster.load("dgx-a100")
    preset = a100.device.kernels
    assert preset is not None
    # Attention as the preset has it is found again.
    shares = [(4e9 * p * h, 1e9 * p, 1e6) for p in (1, 4) for h in (64, 128)]
    found = {
        "products bf16": [(*sizes[:4], preset.products["bf16"].seconds(*sizes[:4], 7)) for sizes in measured],
        "launch": launch_s,
        "convolution": [(((64.0, 64.0, 64.0),), 1e-3)],
        "attention": {way: [(*s, rates.seconds(*s)) for s in shares] for way, rates in preset.attention.items()},
        "elements": MeasuredElements(5.7e-12, 5e-12, 1024, 1.6e-4, 7e-3),
        "starting": HostRates(8e-6, 6e-6, 1e-5, 1.2e-5),
        "lasting": 0.9,
    }
    cluster = with_kernels(a100, found, 7, "measured here")
    cluster.save(tmp_path / "mine.yaml")
    again = Cluster.load(tmp_path / "mine.yaml")
    assert again == cluster
    kernels = again.device.kernels
    assert kernels is not None and kernels.multiprocessors == 7 and kernels.elements is not None
    assert kernels.host == found["starting"]
    for way, rates in preset.attention.items():
        assert kernels.attention[way].seconds(*shares[0]) == pytest.approx(rates.seconds(*shares[0]), rel=1e-3)
    assert again.efficiency.matmul == pytest.approx(0.9)
    assert 0 < again.efficiency.convolution < 0.1
    assert again.source_of("efficiency.convolution").startswith("measured here: of products")
    assert again.source_of("device.kernels.products.bf16") == "measured here, 24 of each type"
    assert again.source_of("device.kernels.attention") == "measured here, cuDNN, bf16, 4 shapes"


@pytest.mark.parametrize("name, dtype, tile", [("cpu", "f32", 16), ("dgx-a100", "bf16", 64)])
def test_products_of_cpus_are_counted_in_small_tiles(name: str, dtype: str, tile: int, tmp_path: Path) -> None:
    rates = ProductRates(start_s=1e-5, tile_s=0.0, tile_depth_s=1e-9, depth_s=0.0, tile=tile)
    shapes = [(1, 64, 64, 64), (1, 512, 64, 64), (1, 512, 512, 512), (64, 8, 8, 32)]
    found = {
        f"products {dtype}": [(*sizes, rates.seconds(*sizes, 1)) for sizes in shapes],
        "launch": 0.0,
        "convolution": [(((64.0, 64.0, 64.0),), 1e-3)],
    }
    with_kernels(Cluster.load(name), found, 1, "measured here").save(tmp_path / "mine.yaml")
    again = Cluster.load(tmp_path / "mine.yaml").device.product_rates(dtype)
    assert again is not None and again.tile == tile
    assert again.seconds(256, 7, 7, 32, 1) == pytest.approx(rates.seconds(256, 7, 7, 32, 1), rel=1e-3)


def event(name: str | None, seconds: float) -> SimpleNamespace:
    """A kernel of a profile, or what belongs to no instruction."""
    return SimpleNamespace(stats=[("hlo_op", name)] if name else [], duration_ns=seconds * 1e9)


def test_kernels_of_a_profile_are_those_of_instructions_on_gpus() -> None:
    def plane(name: str, **lines: list[SimpleNamespace]) -> SimpleNamespace:
        return SimpleNamespace(name=name, lines=[SimpleNamespace(name=n, events=e) for n, e in lines.items()])

    twice = [event("dot", 2e-6), event("fusion", 1e-6), event("dot", 4e-6), event(None, 9.0), event("fusion", 1e-6)]
    profile = SimpleNamespace(
        planes=[
            plane("/host:CPU", Stream=twice),
            plane("/device:GPU:0", Stream1=twice, Steps=twice, Stream2=[event("copy", 3e-6)] * 2),
            plane("/device:GPU:1", XLA=twice),
        ]
    )
    assert kernels_of(profile, 2) == [{"copy": (3e-6, 1.0), "dot": (3e-6, 1.0), "fusion": (1e-6, 1.0)}]
