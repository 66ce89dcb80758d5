"""How many parts of the batch one program is cut into: against all numbers, tried one by one."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import pytest

from rhino.deadline import Deadline
from rhino.errors import Costly, NothingFits
from rhino.ir.import_graph import import_graph
from rhino.ir.microbatch.one_program import OneProgram
from rhino.machine import Cluster
from rhino.program.data import Graph
from rhino.sharding import Options, Solution, plan_sharding
from rhino.sharding.begun import BegunSearches
from rhino.sharding.form_bounds import Form
from rhino.sharding.parts import plan_in_parts
from rhino.sharding.planner import MeshSearch

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


def without_places(graph: Graph | None) -> Graph:
    """The graph without where its operations came from, and names of arguments: the text that is read has neither."""
    assert graph is not None
    ops = [replace(op, where="") for op in graph.ops]
    return replace(graph, ops=ops, arguments=[replace(a, name="") for a in graph.arguments])


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


@pytest.mark.parametrize(
    "limit", [6_000_000, *(pytest.param(limit, marks=pytest.mark.long) for limit in (30_000_000, 2_000_000))]
)
def test_no_number_of_parts_that_a_user_can_ask_for_is_better(limit: int) -> None:
    form, found = plan_in_parts(programs(), CLUSTER, Options(memory_limit=limit))
    assert found.predicted.memory.peak_bytes <= limit
    best = min(by_hand(limit).values())
    assert found.predicted.step_time_s <= 1.02 * best
    assert (form == Form(1)) == (limit == 30_000_000)


def test_where_the_fastest_plan_fits_nothing_is_cut() -> None:
    given = programs()
    form, found = plan_in_parts(given, CLUSTER, Options())
    assert form == Form(1)
    assert found.predicted == plan_sharding(given.whole, CLUSTER, Options()).predicted
    assert "_bytecode" not in vars(given)  # no copy was made


def test_what_lost_says_what_it_would_have_needed() -> None:
    _, found = plan_in_parts(programs(), CLUSTER, Options(memory_limit=2_000_000))
    whole = next(a for a in found.alternatives if a.name == "1 micro-batch")
    assert whole.why.startswith("its fastest plan needs ")
    assert whole.peak_bytes is not None
    assert whole.peak_bytes > 2_000_000


def test_a_step_that_cannot_be_cut_is_planned_whole() -> None:
    given = programs(contrastive)
    assert plan_in_parts(given, CLUSTER, Options())[0] == Form(1)
    with pytest.raises(NothingFits, match=r"memory limit 39\.1 KiB per device cannot be met"):
        plan_in_parts(given, CLUSTER, Options(memory_limit=40_000))
    assert given.refused


def test_the_program_that_is_searched_is_the_one_that_the_passes_make() -> None:
    given = programs()
    made = steps.module_after(str(given.module), "rhino-split-microbatch{count=4}", "rhino-accumulate-in-loops")
    assert without_places(import_graph(made)) == without_places(given.graph(4))


def test_a_loop_of_the_steps_own_is_as_many_as_it_has() -> None:
    def accumulating(w: jax.Array, x: jax.Array) -> jax.Array:
        def body(total: jax.Array, part: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.grad(lambda w: (jnp.tanh(part @ w) ** 2).sum())(w), None

        return w - jax.lax.scan(body, jnp.zeros_like(w), x.reshape(4, -1, 64))[0]

    module = steps.module_after(steps.lowered(accumulating, jnp.zeros((64, 64)), jnp.zeros((BATCH, 64))))
    given = OneProgram(module, import_graph(module))
    assert (given.own, given.counts) == (4, ())
    assert given.graph(4) is given.graph(1) is given.whole
    assert given.graph(2) is None
    assert "has a loop over 4 micro-batches of its own" in given.refused[2, 1].message


def test_nothing_fits_however_it_is_cut() -> None:
    with pytest.raises(NothingFits, match=r"the smallest plan found, in \d+ micro-batches, needs"):
        plan_in_parts(programs(), CLUSTER, Options(memory_limit=40_000))


@pytest.mark.long
def test_where_it_was_given_up_it_goes_on_once_there_is_a_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    options, begun, searched = Options(memory_limit=2_000_000), BegunSearches(), list[Graph]()
    expected = plan_in_parts(programs(), CLUSTER, options)
    free = MeshSearch.free
    monkeypatch.setattr(MeshSearch, "free", lambda self: searched.append(self.graph) or free(self))
    with pytest.raises(Costly, match="for want of memory"):
        plan_in_parts(programs(), CLUSTER, replace(options, costly=False), begun=begun)
    first = len(searched)
    again = replace(options, rival_s=2 * expected[1].predicted.step_time_s)
    form, found = plan_in_parts(programs(), CLUSTER, again, begun=begun)
    assert (form, found.states, found.predicted) == (expected[0], expected[1].states, expected[1].predicted)
    assert first and searched[0] not in searched[first:]
    # Under another limit, of another batch, or once a plan was looked for, all is searched anew.
    for given, asked in ((programs(), replace(options, memory_limit=2_000_001)), (programs(batch=256), options)):
        assert plan_in_parts(given, CLUSTER, asked, begun=begun)[0] == plan_in_parts(given, CLUSTER, asked)[0]
    assert plan_in_parts(programs(), CLUSTER, options, begun=begun)[1].states == expected[1].states


def test_a_rival_has_to_be_beaten() -> None:
    limit = 2_000_000
    form, found = plan_in_parts(programs(), CLUSTER, Options(memory_limit=limit))
    step_s = found.predicted.step_time_s
    same = plan_in_parts(programs(), CLUSTER, Options(memory_limit=limit, rival_s=1.01 * step_s))
    assert (same[0], same[1].states) == (form, found.states)
    with pytest.raises(Costly, match="no plan of one program that fits takes less") as caught:
        plan_in_parts(programs(), CLUSTER, Options(memory_limit=limit, rival_s=0.99 * step_s))
    assert caught.value.least_s == 0.99 * step_s


def test_what_memory_costs_too_much_is_refused_where_it_is_asked_to() -> None:
    def planned(limit: int, costly: bool) -> Solution:
        return plan_in_parts(programs(), CLUSTER, Options(memory_limit=limit, costly=costly))[1]

    # Activations are most of it, which micro-batches divide; then even arguments have to be, and all else follows.
    assert not planned(10**9, False).costly
    tight = planned(2_000_000, True)
    assert tight.costly
    with pytest.raises(Costly, match="for want of memory") as caught:
        planned(810_000, False)
    assert caught.value.least_s <= planned(810_000, True).predicted.step_time_s


def test_nothing_is_said_not_to_fit_that_was_only_looked_at_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    quick: list[bool] = []
    run = MeshSearch.run
    monkeypatch.setattr(MeshSearch, "run", lambda self, cutoff, fast: quick.append(fast) or run(self, cutoff, fast))
    with pytest.raises(NothingFits):  # of a step that cannot be cut, and is one form
        plan_in_parts(programs(contrastive), CLUSTER, Options(memory_limit=20_000))
    assert quick == [True, False]


def test_the_budget_reaches_it() -> None:
    """With no time left it still says whether there is a plan, but cuts the batch no further than it must."""
    over = Deadline(at_s=0.0, hopeless_s=0.0, clock=lambda: 1.0)
    given = programs()
    with pytest.raises(NothingFits, match="in the time budget"):
        plan_in_parts(given, CLUSTER, Options(memory_limit=40_000, deadline=over))
