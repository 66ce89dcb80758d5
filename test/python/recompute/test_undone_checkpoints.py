"""Steps with `jax.checkpoint` made what they are without: as much arithmetic, the same numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import microbatch_steps as steps
import numpy as np
import pytest
from jaxlib.mlir import ir

import rhino
from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.recompute.step import undo
from rhino.program.regions import body_items
from rhino.recompute import products

LONG = pytest.mark.long
CASES = [
    pytest.param("gpt", {}, id="unrolled", marks=LONG),
    pytest.param("gpt", {"scan": True}, id="scan"),
    pytest.param("llama", {"scan": True}, id="llama", marks=LONG),
    pytest.param("gpt", {"scan": True, "dropout": 0.1}, marks=LONG),
    pytest.param("gpt", {"dropout": 0.1}, marks=LONG),
    pytest.param("t5", {"scan": True}, marks=LONG),
    pytest.param("moe", {"scan": True, "layers": 4}, marks=LONG),
    pytest.param("vit", {"scan": True}, marks=LONG),
    pytest.param("unet", {}, marks=LONG),
]


def flops(module: ir.Module) -> int:
    """Of all products in one step."""
    graph = import_graph(module)
    return sum(products(graph, graph.ops[i]) for i in body_items(graph, -1))


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_a_step_is_what_it_is_without_checkpoints(name: str, changes: dict[str, Any]) -> None:
    step, state, batch = steps.tiny(name, remat=True, **changes)
    plain = parse_text(steps.lowered(*steps.tiny(name, **changes)), make_context())
    text = steps.lowered(step, state, batch)
    module = parse_text(text, make_context())
    before = flops(module)
    done = undo(module)
    module.operation.verify()
    assert flops(module) == before - done.flops == flops(plain) < before
    assert (done.loops > 0) == bool(changes.get("scan"))
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((state, batch))]
    steps.agree(steps.run(str(module), flat), steps.run(text, flat), 1e-6, 1e-6)
    # There is no more to undo.
    again = undo(module)
    assert (again.operations, again.loops, again.flops) == (0, 0, 0)


def layers(w: Any, x: Any, again: Any) -> Any:
    """A stack of layers in a loop, each done again as `again` has it."""

    def body(h: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(h @ w), None

    return jnp.sum(jax.lax.scan(again(body), x, w)[0])


@pytest.mark.parametrize("prevent_cse", [False, True], ids=["free", "barrier"])
def test_layers_with_barriers_of_their_own(prevent_cse: bool) -> None:
    w, x = jnp.ones((3, 8, 8)) / 8, jnp.arange(32.0).reshape(4, 8) / 32
    ways = {True: lambda body: jax.checkpoint(body, prevent_cse=prevent_cse), False: lambda body: body}
    texts = {}
    for again, wrap in ways.items():
        texts[again] = steps.lowered(jax.grad(lambda w, x, f=wrap: layers(w, x, f)), w, x)
    module, plain = (parse_text(texts[again], make_context()) for again in (True, False))
    done = undo(module)
    assert done.loops == 1
    assert flops(module) == flops(plain)
    flat = [np.asarray(w), np.asarray(x)]
    steps.agree(steps.run(str(module), flat), steps.run(texts[True], flat), 1e-6, 1e-6)


@pytest.mark.long
def test_a_planned_step() -> None:
    step, state, batch = steps.tiny("gpt", 8, scan=True, remat=True)
    want = jax.jit(step)(state, batch)
    found = {}
    for remat in ("keep", "none"):
        planned = rhino.parallelize(step, mesh=(8,), stages=1, remat=remat)
        got = planned(state, batch)
        flat = [[np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (got, want)]
        steps.agree(flat[0], flat[1], 1e-4, 1e-4)
        found[remat] = planned.plan(state, batch).predicted
    assert found["none"].compute_s < found["keep"].compute_s
    assert found["none"].peak_bytes > found["keep"].peak_bytes
