"""Gradients as local sums: the numbers of one device, and nothing sent for them in the loop over micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import numpy as np
import pytest
from alpha_beta import AlphaBeta, Textbook

from rhino.compile import Executable, compile_module
from rhino.compile.collectives import Collective
from rhino.ir.import_graph import import_graph
from rhino.ir.meshes import given_mesh
from rhino.ir.microbatch.one_program import OneProgram
from rhino.ir.read_layouts import read_layouts
from rhino.ir.write_layouts import annotate
from rhino.machine import Cluster
from rhino.sharding import Options, Solution, parts, plan_sharding
from rhino.sharding.cones import build_problem
from rhino.sharding.estimate import estimate_plan
from rhino.sharding.form_bounds import Form
from rhino.sharding.parts import plan_in_parts
from rhino.sharding.taken import open_states

CLUSTER = Cluster.load("dgx-h100:1")
MODELS: Mapping[str, Mapping[str, Any]] = {
    "gpt": {"scan": True},
    "bert": {},
    "moe": {},
    "t5": {},
    "llama": {"scan": True},
    "lstm": {},
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in ("bert", "llama", "t5"))) for n in MODELS]
)
def test_models_compute_what_one_device_does(name: str) -> None:
    step, state, batch = steps.tiny(name, 16, **MODELS[name])
    text = steps.lowered(step, state, batch)
    arguments = [np.asarray(a) for a in jax.tree.leaves((state, batch))]
    want = steps.run(text, arguments)
    cut = steps.text_of(text, "rhino-split-microbatch{count=2 sums=4}", "rhino-accumulate-in-loops")
    assert "sums = 4 : i64" in cut
    steps.agree(steps.run(cut, arguments), want, rtol=1e-4, atol=1e-5)


def layers(w: jax.Array, v: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Layers in a loop, whose gradients it stacks; activations are larger than parameters."""

    def loss(w: jax.Array, v: jax.Array) -> jax.Array:
        def layer(h: jax.Array, of: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return h + jnp.tanh(h @ of[0]) @ of[1], None

        return (jax.lax.scan(layer, x, (w, v))[0] ** 2).mean()

    gw, gv = jax.grad(loss, (0, 1))(w, v)
    return w - gw, v - gv


def inputs(batch: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shapes = [(3, 32, 64), (3, 64, 32), (batch, 8, 32)]
    return [random.normal(0, 0.3, shape).astype(np.float32) for shape in shapes]


def cut(sums: int) -> Any:
    local = f" sums={sums}" if sums > 1 else ""
    text = steps.lowered(layers, *inputs(64))
    return steps.module_after(text, f"rhino-split-microbatch{{count=4{local}}}", "rhino-accumulate-in-loops")


# Everything is split that can be: compute is dear and communication nearly free.
EAGER = Textbook(
    CLUSTER,
    lambda sizes: AlphaBeta(sizes, (1e-6,) * len(sizes), (1e-9,) * len(sizes)),
    lambda graph: [float(op.flops * op.trips) for op in graph.ops],
)


def on_eight_devices(sums: int) -> tuple[Executable, Solution]:
    """The step with whole parameters, so that all devices need their gradients."""
    module = cut(sums)
    graph = import_graph(module)
    for argument in graph.arguments:
        if argument.role == "param":
            graph.pins[argument.value] = (argument.name, ((), (), ()))
    solution = plan_sharding(graph, CLUSTER, Options(mesh=(4, 2), sums=sums), model=EAGER)
    annotate(module, graph, solution)
    return compile_module(str(module), "cpu", devices=8), solution


def between(executable: Executable) -> list[Collective]:
    """What is sent between devices at different places of the first axis."""
    return [c for c in executable.collectives() if any(len({d // 2 for d in group}) > 1 for group in c.groups)]


def test_nothing_is_sent_over_the_first_axis_in_the_loop() -> None:
    arguments = inputs(64)
    want = steps.run(steps.lowered(layers, *arguments), arguments)
    (plain, _), (local, solution) = on_eight_devices(1), on_eight_devices(4)
    for executable in (plain, local):
        steps.agree([np.asarray(out) for out in executable(*arguments)], want, rtol=1e-4, atol=1e-5)
    # In each of 4 micro-batches for each of 3 layers, or for each of the two parameters after the loop.
    assert sum(one.count for one in between(plain)) >= 24
    assert {one.kind for one in between(local)} == {"all-reduce"}
    assert sum(one.count for one in between(local)) <= 2
    makers = [op for op in solution.problem.graph.ops if op.local >= 0]
    assert len(makers) == 2
    for op in makers:
        assert solution.factors(op.index)[op.local] == ("x",)


def test_the_first_axis_is_for_them_and_others_split_the_examples_of_each() -> None:
    """One operation reads examples as they are: in a reshape alone, only the outer factor could be split."""
    problem = build_problem(import_graph(cut(4)))
    nodes = [node for node in problem.nodes if node.kind == "op" and problem.graph.ops[node.ops[0]].local >= 0]
    assert len(nodes) == 2
    for node in nodes:
        op = problem.graph.ops[node.ops[0]]
        assert op.rule is not None
        ((local, examples),) = {dim for m in op.rule.operands for dim in m if op.local in dim}
        assert (local, op.rule.factor_sizes[local], op.rule.factor_sizes[examples]) == (op.local, 4, 4)
        of_sums, of_examples = (node.factors.index(f) + 1 for f in (local, examples))
        assert open_states(op, node, "xy", (4, 2), 0) == (of_sums,)
        assert open_states(op, node, "xy", (4, 2), 1) == [s for s in range(node.states) if s != of_sums]
        # On another mesh, which no search would take for them, examples are split where the sums are.
        for axis in (0, 1):
            assert open_states(op, node, "xy", (2, 4), axis) == [s for s in range(node.states) if s != of_examples]


def test_the_plan_is_read_back_as_it_was_made() -> None:
    text = steps.lowered(layers, *shaped(1024))
    module = steps.module_after(text, "rhino-split-microbatch{count=2 sums=8}", "rhino-accumulate-in-loops")
    graph, cluster = import_graph(module), Cluster.load("p3.16xlarge:8")
    solution = plan_sharding(graph, cluster, Options(mesh=(8, 8), sums=8))
    annotate(module, graph, solution)
    again, written = read_layouts(module)
    assert [(op.operands, op.rule, op.local) for op in again.ops] == [(o.operands, o.rule, o.local) for o in graph.ops]
    assert estimate_plan(again, written, cluster, given_mesh(module)).predicted == solution.predicted


def test_copies_of_examples_are_made_before_these_are_grouped() -> None:
    module = cut(4)
    graph = import_graph(module)
    solution = plan_sharding(graph, CLUSTER, Options(mesh=(4, 2), sums=4), model=EAGER)
    copied = {reader for copy, _ in solution.copies() for reader in copy.readers}
    makers = {op.index for op in graph.ops if op.local >= 0}
    assert {at for at, _ in copied} & makers
    annotate(module, graph, solution)
    assert copied <= read_layouts(module)[1].read.keys()


def shaped(batch: int) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 1024, 4096), (4, 4096, 1024), (batch, 512, 1024))]


def test_they_are_searched_with_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow links between hosts, and too little memory for what the backward pass reads."""
    module = steps.module_after(steps.lowered(layers, *shaped(1024)))
    cluster, options = Cluster.load("p3.16xlarge:8"), Options(memory_limit=600 * 2**20)

    def planned() -> tuple[Form, Solution]:
        return plan_in_parts(OneProgram(module, import_graph(module), chooses=True), cluster, options)

    form, found = planned()
    assert form.sums == found.mesh[0][1] == 8
    with monkeypatch.context() as long:
        # Of a long program they are tried for the best of what was tried.
        long.setitem(parts.EFFORT, "O1", 3 * len(import_graph(module).ops))
        assert planned()[0].sums == 8
    monkeypatch.setattr("rhino.sharding.parts._FormSearch._local_counts", lambda self: [])
    form, without = planned()
    assert form.sums == 1
    assert found.predicted.step_time_s < 0.92 * without.predicted.step_time_s


def test_they_are_searched_for_as_many_micro_batches_as_were_asked_for() -> None:
    """Though the fastest plan without them fits, and is searched alone where none were asked for."""
    module = steps.module_after(steps.lowered(layers, *shaped(1024)))
    given = OneProgram(module, import_graph(module), parts=4)
    form, found = plan_in_parts(given, Cluster.load("p3.16xlarge:8"), Options())
    assert (form.parts, form.sums) == (4, 8)
    reduced = given.graph(4)
    assert reduced is not None
    alone = plan_sharding(reduced, Cluster.load("p3.16xlarge:8"), Options())
    assert found.predicted.step_time_s < alone.predicted.step_time_s


def test_a_step_without_any_is_refused_and_cut_without() -> None:
    def largest(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - jnp.max(jnp.tanh(x @ w), axis=(0, 1))

    module = steps.module_after(steps.lowered(largest, jnp.zeros((8, 4)), jnp.zeros((64, 2, 8))))
    given = OneProgram(module, import_graph(module))
    assert all(given.graph(n, sums=2) is None for n in (2, 4, 8, 16, 32))
    assert "nothing that 2 micro-batches add up can be 2 local sums" in given.refused[2, 2].message
    assert given.graph(2) is not None
