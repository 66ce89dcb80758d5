"""What the host takes to start a step, in closed form: arrays, kernels alone, graphs, and what parts graphs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_programs import graph_of, spec

from rhino.compile.timeline import read_timeline
from rhino.machine import Cluster
from rhino.machine.host import Starting, starting_seconds
from rhino.machine.rates import HostRates

RATES = HostRates(array_s=8.0, kernel_s=6.0, apart_s=10.0, graph_s=12.0)


def hosted(rates: HostRates | None) -> Cluster:
    """An H100 whose host takes this."""
    cluster = Cluster.load("dgx-h100")
    assert cluster.device.kernels is not None
    return replace(cluster, device=replace(cluster.device, kernels=replace(cluster.device.kernels, host=rates)))


def test_few_kernels_are_started_alone_and_many_as_one_graph() -> None:
    for count, seconds in ((0, 0.0), (1, 6.0), (4, 24.0), (5, 12.0), (100, 12.0)):
        starting = Starting(RATES)
        for _ in range(count):
            starting.kernel(1)
        starting.end()
        assert starting.seconds == seconds


def test_a_convolution_parts_a_graph() -> None:
    starting = Starting(RATES)
    for kernels in (6, 7):
        for _ in range(kernels):
            starting.kernel(1)
        starting.apart(1)
    starting.end()
    assert starting.seconds == 2 * (12.0 + 10.0)


def test_a_loop_starts_its_graph_in_each_iteration() -> None:
    starting = Starting(RATES)
    for times in (1, 30, 1):
        for _ in range(5):
            starting.kernel(times)
    starting.end()
    assert starting.seconds == (1 + 30 + 1) * 12.0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), max_size=40))
def test_without_graphs_each_kernel_is_started(told: list[tuple[bool, int]]) -> None:
    found = []
    for graphs in (False, True):
        starting = Starting(RATES, graphs)
        for is_kernel, times in told:
            (starting.kernel if is_kernel else starting.apart)(times)
        starting.end()
        found.append(starting.seconds)
    assert found[0] == sum(times * (6.0 if is_kernel else 10.0) for is_kernel, times in told)
    assert found[1] <= found[0]


def test_of_a_program_arrays_kernels_and_convolutions_count() -> None:
    def step(x: jax.Array, k: jax.Array) -> jax.Array:
        made = jax.lax.conv_general_dilated(jnp.tanh(x), k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.lax.fori_loop(0, 9, lambda _, v: jnp.tanh(v @ v), made.reshape(64, 64))

    alone_s, each_s = starting_seconds(graph_of(step, spec(1, 16, 16, 16), spec(1, 1, 16, 16)), hosted(RATES))
    # Two arrays; a tanh; the convolution; nine times a product and a tanh.
    assert (alone_s, each_s) == (2 * 8.0 + 6.0 + 10.0 + 9 * 2 * 6.0, 10.0 + 12.0)
    assert starting_seconds(graph_of(jnp.tanh, spec(8)), hosted(None)) == (0.0, 0.0)


HLO = """HloModule m, is_scheduled=true, num_partitions=2

ENTRY %main (p: f32[64,64], q: f32[64,64]) -> f32[64,64] {
  p = f32[64,64]{1,0} parameter(0)
  q = f32[64,64]{1,0} parameter(1)
  a = f32[64,64]{1,0} add(p, q)
  s = f32[64,64]{1,0} all-reduce(a), replica_groups={{0,1}}, use_global_device_ids=true, channel_id=1, to_apply=sum
  ROOT c = f32[64,64]{1,0} multiply(s, q)
}

%sum (x: f32[], y: f32[]) -> f32[] {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
"""


def test_a_timeline_has_what_its_program_starts() -> None:
    found = read_timeline(HLO, hosted(RATES))
    assert found.host_s == pytest.approx(2 * 8.0 + 6.0 + 10.0 + 6.0)
    assert found.period_s == found.host_s > found.total_s
    nobody = read_timeline(HLO, hosted(None))
    assert nobody.host_s == 0 and nobody.period_s == nobody.total_s == found.total_s
