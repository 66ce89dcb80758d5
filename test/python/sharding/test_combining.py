"""Starts of collectives that XLA combines: whose are shared, what a share costs, and that search and events agree."""

from __future__ import annotations

from math import inf

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_programs import adam_step, compiled, graph_of, host, module_of, spec

from rhino.ir.import_graph import import_graph
from rhino.machine import Cluster
from rhino.machine.collectives import RingModel
from rhino.sharding import Options, plan_sharding
from rhino.sharding.combining import Combined, become_one, combinable, joined_seconds, made_together, shared_seconds
from rhino.sharding.cones import build_problem
from rhino.sharding.costs import Costs
from rhino.sharding.estimate import collectives
from rhino.sharding.layout import RouteStep
from rhino.sharding.overlap import stored_transfers
from rhino.sharding.symmetry import tie_repeats
from rhino.sharding.time_model import ProgramTimes, TimeModel
from rhino.xla import back_end

MIB = 2**20


@given(st.integers(1, 2**28), st.integers(1, 2**28))
def test_parts_of_a_collective_take_what_it_takes(nbytes: int, rest: int) -> None:
    comm, together = RingModel(Cluster.load("dgx-h100"), (8,)), float(nbytes + rest)
    shares = [shared_seconds(comm, "all-reduce", (0,), b, together) for b in (nbytes, rest)]
    assert sum(shares) == pytest.approx(comm.time("all-reduce", (0,), together))
    # A start is shared, and nothing else: no part is dearer than by itself, none sends faster than the whole.
    assert shares[0] <= comm.time("all-reduce", (0,), nbytes) * (1 + 1e-12)
    assert shared_seconds(comm, "all-reduce", (0,), nbytes, float(nbytes)) == comm.time("all-reduce", (0,), nbytes)


def test_what_is_combined_is_copied_together_and_out_again() -> None:
    copying = (2.0, 10.0)
    # One kernel for both, and one for each.
    assert joined_seconds(30.0, 100.0, copying) + joined_seconds(70.0, 100.0, copying) == 4 * 100 * 2 + 3 * 10
    assert joined_seconds(100.0, 100.0, copying) == joined_seconds(0.0, 100.0, copying) == 0


@pytest.mark.parametrize(("cluster", "kind", "copied"), [
    ("dgx-h100", "all-reduce", True), ("dgx-h100", "all-gather", False), ("cpu:8", "all-reduce", False)
])  # fmt: skip
def test_all_reduces_on_gpus_pay_for_it(cluster: str, kind: str, copied: bool) -> None:
    graph = graph_of(jnp.tanh, spec(8, 8))
    problem = build_problem(graph)
    times = ProgramTimes.of(problem, tie_repeats(problem), TimeModel(Cluster.load(cluster)))
    costs, step = Costs.on(times, (8,)), RouteStep(kind, (0,), 1000.0)
    found = costs.step_seconds(step, Combined(4.0)) - shared_seconds(costs.comm, kind, (0,), 1000.0, 4000.0)
    assert found == pytest.approx(joined_seconds(1000.0, 4000.0, costs.copying) if copied else 0.0)


@pytest.mark.parametrize(
    "target, kind, most",
    [
        ("h100", "all-reduce", 16 * MIB),
        ("h100", "all-gather", 16 * MIB),
        ("h100", "reduce-scatter", 16 * MIB),
        ("h100", "all-to-all", 0),
        ("h100", "collective-permute", 0),
        ("cpu", "all-reduce", float("inf")),
        ("cpu", "all-gather", 0),
    ],
)
def test_what_xla_combines(target: str, kind: str, most: float) -> None:
    assert back_end(target).combined_bytes(kind) == most


def test_gradients_are_combinable_and_activations_are_not() -> None:
    function, arguments = adam_step(4, 64, 32)
    graph = import_graph(module_of(function, *arguments, donate=(0,), roles=True))
    problem = build_problem(graph)
    quotient = tie_repeats(problem)
    found = combinable(problem, quotient, stored_transfers(problem, quotient))
    kinds: dict[str, set[float]] = {}
    for transfer, _ in quotient.transfers:
        if transfer.index in found:
            kinds.setdefault(transfer.kind, set()).add(found[transfer.index].times)
    # What uses a parameter is there twice of a bias: for its sum, and for its update.
    assert kinds == {"use": {4.0, 8.0}, "define": {4.0}, "return": {4.0}}
    activations = {t.index for t, _ in quotient.transfers if graph.values[t.value].shape == (64, 32)}
    assert activations and not activations & found.keys()
    assert len(found) + len(activations) == len(quotient.transfers)


@pytest.fixture(params=[False, True], ids=["apart", "shared"])
def shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether CPUs start what XLA makes one collective of at once, as they do not and GPUs do."""
    if request.param:
        monkeypatch.setattr(TimeModel, "starts_shared", True)
    return bool(request.param)


def test_the_starts_of_gradients_count_once_where_they_are_shared(shared: bool) -> None:
    """Data parallelism of a small step: as many all-reduces as parameters, which XLA makes one."""
    function, arguments = adam_step(6, 8192, 64)
    module = module_of(function, *arguments, donate=(0,))
    graph = import_graph(module)
    cpu = host(4, target="cpu", reduce_scatter=False)
    for argument in graph.arguments:
        rank = len(graph.values[argument.value].shape)
        split = ("x",) if argument.name in ("x", "y") else ()
        graph.pins[argument.value] = (f"argument {argument.name}", (split, (), ())[:rank])
    solution = plan_sharding(graph, cpu, Options(mesh=(4,)))
    counts, sent = compiled(module, graph, solution)
    assert counts == {"all-reduce": 1}
    assert solution.predicted.collectives["all-reduce"] >= 12
    assert dict(sent) == solution.predicted.comm_bytes
    comm = RingModel(cpu, (4,))
    # Matrices have a start, and vectors; or each has its own.
    times, together = (1, 6) if shared else (6, 1)
    whole = times * sum(comm.time("all-reduce", (0,), together * nbytes * 4) for nbytes in (64 * 64, 64))
    assert solution.predicted.comm_s == pytest.approx(whole)
    events = collectives(solution.costs, solution.states, every=True)
    assert sum(e.seconds * e.trips for e in events) == pytest.approx(whole)


def normalised(x: jax.Array) -> jax.Array:
    """As BatchNorm and LayerNorm do it, with the mean of squares."""
    mean, squares = x.mean(0), (x * x).mean(0)
    return jnp.tanh((x - mean) * jax.lax.rsqrt(squares - mean**2 + 1e-3))


def test_sums_that_a_step_waits_for_are_combined_with_those_beside_them(shared: bool) -> None:
    module = module_of(normalised, spec(64, 4096))
    graph = import_graph(module)
    cpu = host(4, target="cpu", reduce_scatter=False)
    graph.pins[graph.arguments[0].value] = ("argument x", (("x",), ()))
    solution = plan_sharding(graph, cpu, Options(mesh=(4,)))
    assert solution.predicted.collectives == {"all-reduce": 2}
    counts, sent = compiled(module, graph, solution)
    assert counts == {"all-reduce": 1}
    assert dict(sent) == solution.predicted.comm_bytes
    times, together = (1, 2) if shared else (2, 1)
    one_s = RingModel(cpu, (4,)).time("all-reduce", (0,), together * 4 * 4096)
    assert solution.predicted.comm_s == pytest.approx(times * one_s)


def test_sums_that_follow_from_each_other_are_not() -> None:
    def deviation(x: jax.Array) -> jax.Array:
        return ((x - x.mean(0)) ** 2).mean(0)

    def softmax(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x, axis=0)

    def different(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x.max(0), x.sum(0)

    for function, together in ((deviation, {}), (softmax, {}), (different, {}), (normalised, {(2.0, True)})):
        problem = build_problem(graph_of(function, spec(64, 4096)))
        found = made_together(problem, tie_repeats(problem), ())
        assert {(c.times, c.awaited) for c in found.values()} == set(together)


def test_alike_collectives_become_one_up_to_a_limit() -> None:
    made = [("a", 3.0, 8.0, 0), ("b", 1.0, 8.0, 1), ("a", 5.0, 8.0, 2), ("a", 1.0, 8.0, 3), ("c", 9.0, 8.0, 4)]
    assert become_one(made) == [[0, 2], [1], [3], [4]]
    assert become_one([("a", 1.0, 0.0, 0), ("a", 1.0, 0.0, 1)]) == [[0], [1]]
    assert become_one([("a", 1e9, inf, 0), ("a", 1e9, inf, 1)]) == [[0, 1]]
