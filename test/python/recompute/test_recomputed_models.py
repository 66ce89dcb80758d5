"""Recomputation of the example models: the same numbers, as many products as said, and less memory by XLA."""

from __future__ import annotations

from typing import Any

import jax
import microbatch_steps as steps
import numpy as np
import pytest
from jaxlib.mlir import ir

from rhino.compile import compile_module
from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.recompute.step import recompute
from rhino.recompute import body_items, products

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("gpt", {"dropout": 0.1}, "layers"),
    ("gpt", {"dropout": 0.1}, "dots"),
    ("gpt", {"dropout": 0.1, "scan": True}, "layers"),
    ("gpt", {"scan": True}, "dots"),
    ("llama", {"scan": True}, "layers"),
    ("t5", {"layers": 1}, "layers"),
    ("t5", {"scan": True}, "dots"),
    ("vit", {}, "layers"),
    ("moe", {}, "dots"),
    ("mlp", {}, "layers"),
]


def flops(module: ir.Module) -> int:
    """Of all products in one step."""
    graph = import_graph(module)
    return sum(products(graph, graph.ops[i]) for i in body_items(graph, -1))


@pytest.mark.parametrize(("name", "changes", "policy"), CASES)
def test_recomputation_makes_the_same_step(name: str, changes: dict[str, Any], policy: str) -> None:
    step, state, batch = steps.tiny(name, **changes)
    text = steps.lowered(step, state, batch)
    module = parse_text(text, make_context())
    before = flops(module)
    done = recompute(module, policy)
    module.operation.verify()
    assert done.operations > 0
    assert not done.reason
    assert flops(module) == before + done.flops
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((state, batch))]
    steps.agree(steps.run(str(module), flat), steps.run(text, flat), 1e-6, 1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["unet", "convnet", "wide_resnet", "clip", "bert", "sparse_llama", "dlrm", "lstm"])
@pytest.mark.parametrize("policy", ["dots", "layers"])
def test_other_models(name: str, policy: str) -> None:
    test_recomputation_makes_the_same_step(name, {}, policy)


def test_bfloat16() -> None:
    # XLA computes chains of bfloat16 in float32 as it fuses them, so that copies may be rounded elsewhere.
    step, state, batch = steps.tiny("gpt", dtype="bfloat16")
    text = steps.lowered(step, state, batch)
    module = parse_text(text, make_context())
    recompute(module, "layers")
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((state, batch))]
    steps.agree(steps.run(str(module), flat), steps.run(text, flat), 2**-8, 2**-8)


def test_the_users_own_recomputation_is_not_done_twice() -> None:
    step, state, batch = steps.tiny("gpt", scan=True, remat=True)
    done = recompute(parse_text(steps.lowered(step, state, batch), make_context()), "layers")
    assert (done.loops, done.flops) == (0, 0)


def test_the_same_module_gives_the_same_bytes() -> None:
    step, state, batch = steps.tiny("llama", scan=False)
    text = steps.lowered(step, state, batch)
    found = []
    for _ in range(2):
        module = parse_text(text, make_context())
        recompute(module, "dots")
        found.append(str(module))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "scan", [pytest.param(False, marks=pytest.mark.long), pytest.param(True, marks=pytest.mark.slow)]
)
def test_xla_keeps_less_and_does_the_products_again(scan: bool, gpu_compiler: None) -> None:
    step, state, batch = steps.tiny("gpt", 8, scan=scan, layers=4, width=128, seq_len=256, dtype="bfloat16")
    text = steps.lowered(step, state, batch)
    peaks = {}
    for policy in ("keep", "dots", "layers"):
        module = parse_text(text, make_context())
        if policy != "keep":
            recompute(module, policy)
        peaks[policy] = compile_module(str(module), "h100").memory_analysis().temp_size_in_bytes
    assert peaks["layers"] < peaks["dots"] < peaks["keep"]
    assert peaks["layers"] < 0.5 * peaks["keep"]
