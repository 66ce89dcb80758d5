"""How many parts of the batch one program is cut into: against all numbers, tried one by one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import pytest

from rhino.deadline import Deadline
from rhino.errors import NothingFits
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.one_program import OneProgram
from rhino.machine import Cluster
from rhino.sharding import Options, plan_sharding
from rhino.sharding.parts import plan_in_parts

CLUSTER = Cluster.load("dgx-h100:1")
BATCH = 512


def step(w: jax.Array, v: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A layer whose activations are much larger than its parameters."""

    def loss(w: jax.Array, v: jax.Array) -> jax.Array:
        return ((jnp.tanh(x @ w) @ v) ** 2).mean()

    gw, gv = jax.grad(loss, (0, 1))(w, v)
    return w - gw, v - gv


def contrastive(w: jax.Array, x: jax.Array) -> jax.Array:
    """Every example meets every other."""
    return w - jax.grad(lambda w: jax.nn.logsumexp((x @ w) @ (x @ w).T))(w)


def programs(function: object = step, batch: int = BATCH) -> OneProgram:
    shapes = [(64, 1024), (1024, 8), (batch, 32, 64)] if function is step else [(64, 64), (batch, 64)]
    text = steps.lowered(function, *(jnp.zeros(shape) for shape in shapes))
    module = steps.module_after(text)
    return OneProgram(module, import_graph(module))


def by_hand(limit: int, level: str = "O1") -> dict[int, float]:
    """Seconds of the best plan for every number of parts for which one fits."""
    found = {}
    given = programs()
    for parts in (1, *given.counts):
        graph = given.graph(parts)
        assert graph is not None
        try:
            predicted = plan_sharding(graph, CLUSTER, Options(level=level, memory_limit=limit)).predicted
        except NothingFits:
            continue
        assert predicted.memory.peak_bytes <= limit
        found[parts] = predicted.step_time_s
    return found


@pytest.mark.parametrize("limit", [30_000_000, 6_000_000, 2_000_000])
def test_no_number_of_parts_that_a_user_can_ask_for_is_better(limit: int) -> None:
    parts, found = plan_in_parts(programs(), CLUSTER, Options(memory_limit=limit))
    assert found.predicted.memory.peak_bytes <= limit
    best = min(by_hand(limit).values())
    assert found.predicted.step_time_s <= 1.02 * best
    assert (parts == 1) == (limit == 30_000_000)


def test_where_the_fastest_plan_fits_nothing_is_cut() -> None:
    given = programs()
    parts, found = plan_in_parts(given, CLUSTER, Options())
    assert parts == 1
    assert found.predicted == plan_sharding(given.whole, CLUSTER, Options()).predicted
    assert given._bytecode == b""  # no copy was made


def test_what_lost_says_what_it_would_have_needed() -> None:
    _, found = plan_in_parts(programs(), CLUSTER, Options(memory_limit=2_000_000))
    whole = next(a for a in found.alternatives if a.name == "1 micro-batch")
    assert whole.why.startswith("its fastest plan needs ")
    assert whole.peak_bytes is not None
    assert whole.peak_bytes > 2_000_000


def test_a_step_that_cannot_be_cut_is_planned_whole() -> None:
    given = programs(contrastive)
    assert plan_in_parts(given, CLUSTER, Options())[0] == 1
    with pytest.raises(NothingFits, match=r"memory limit 39\.1 KiB per device cannot be met"):
        plan_in_parts(given, CLUSTER, Options(memory_limit=40_000))
    assert given.refused


def test_nothing_fits_however_it_is_cut() -> None:
    with pytest.raises(NothingFits, match=r", in \d+ micro-batches"):
        plan_in_parts(programs(), CLUSTER, Options(memory_limit=40_000))


def test_the_budget_reaches_it() -> None:
    """With no time left it still says whether there is a plan, but cuts the batch no further than it must."""
    over = Deadline(at_s=0.0, hopeless_s=0.0, clock=lambda: 1.0)
    given = programs()
    with pytest.raises(NothingFits, match="in the time budget"):
        plan_in_parts(given, CLUSTER, Options(memory_limit=40_000, deadline=over))
