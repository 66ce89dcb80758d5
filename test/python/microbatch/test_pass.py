"""What the loop form means to the passes that come after it, and what of the module it keeps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import pytest
from alpha_beta import AlphaBeta, Textbook

from examples.models import gpt
from rhino.dialect import functions
from rhino.dialect.locations import location_text
from rhino.ir.import_graph import import_graph
from rhino.machine import Cluster, Device, Level
from rhino.sharding import Options, plan_sharding


def mean_of_products(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step with one parameter."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.tanh(x @ w).mean())(w)
    return w - gradient, loss


@pytest.mark.parametrize("count", [1, 4])
def test_the_graph_knows_the_loop_and_its_trips(count: int) -> None:
    text = steps.lowered(mean_of_products, jnp.ones((4, 2)), jnp.ones((8, 4)))
    assert import_graph(steps.module_after(text)).microbatch_loop == -1
    graph = import_graph(steps.module_after(steps.split(text, count)))
    loop = graph.ops[graph.microbatch_loop]
    assert (loop.name, loop.iterations, loop.trips) == ("stablehlo.while", count, 1)
    inside = [op for op in graph.ops if op.parent == loop.index and op.name == "stablehlo.dot_general"]
    assert [op.trips for op in inside] == [count] * 2
    shapes = [graph.values[v].shape for v in loop.results]
    assert shapes == [(), (), (2, 4)] or shapes == [(), (), (4, 2)]  # counter, loss, gradient


def test_signature_and_locations_stay() -> None:
    text = steps.lowered(mean_of_products, jnp.ones((4, 2)), jnp.ones((8, 4)))
    whole, split = steps.module_after(text), steps.module_after(steps.split(text, 2))
    mains = [functions.find(module, "main") for module in (whole, split)]
    assert str(mains[0].attributes["function_type"]) == str(mains[1].attributes["function_type"])
    assert [*map(str, functions.argument_attributes(mains[0]))] == [*map(str, functions.argument_attributes(mains[1]))]
    assert [*map(str, functions.result_attributes(mains[0]))] == [*map(str, functions.result_attributes(mains[1]))]

    def places(main: object) -> set[str]:
        names = ("stablehlo.dot_general", "stablehlo.tanh")
        return {location_text(op.location) for op in functions.walk(main) if op.name in names}

    assert places(mains[0]) == places(mains[1])


def test_the_loop_is_planned_as_the_whole_step_is() -> None:
    """Where communication is cheap, four devices share what is in the loop."""
    config = gpt.PRESETS["tiny"]
    text = steps.lowered(gpt.make_train_step(config)[1], *gpt.abstract_inputs(config, 16))
    device = Device("h100", "h100", {"f32": 1e13}, 80 * 2**30, 1e12)
    host = Cluster("host", 1, 4, device, (Level("link", 4, 1e11, 1e-6),), True)
    seconds, memory = [], []
    for module in (steps.module_after(text), steps.module_after(steps.split(text, 4))):
        graph = import_graph(module)
        work = [op.trips * op.flops * 1e-13 for op in graph.ops]
        model = Textbook(host, lambda sizes: AlphaBeta(sizes, (1e-9,), (1e-13,)), lambda _, work=work: work)
        solution = plan_sharding(graph, host, Options(mesh=(4,)), model=model)
        seconds.append(solution.predicted.step_time_s)
        memory.append(solution.predicted.memory.temp_bytes)
        one_device = sum(work)
        assert solution.predicted.step_time_s < one_device / 3
    assert seconds[1] < 1.1 * seconds[0]
    assert memory[1] < 0.6 * memory[0]
