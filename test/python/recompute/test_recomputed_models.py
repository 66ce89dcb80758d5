"""Recomputation of the example models: the same numbers, as many products as said, and less memory by XLA."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import microbatch_steps as steps
import numpy as np
import pytest
from jaxlib.mlir import ir

from rhino.compile import compile_module
from rhino.compile.undone import undone
from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.ir.recompute.step import recompute
from rhino.ir.recompute.ways import variants
from rhino.program.regions import body_items
from rhino.recompute import kept_bytes, products, read_step

LONG = pytest.mark.long
CASES = [
    pytest.param("gpt", {"dropout": 0.1, "layers": 1}, "layers", id="dropout", marks=LONG),
    pytest.param("llama", {"scan": True}, "layers", id="scan"),
    pytest.param("mlp", {}, "layers", id="mlp"),
    *(pytest.param("gpt", {"dropout": 0.1}, policy, marks=LONG) for policy in ("dots", "layers")),
    pytest.param("gpt", {"dropout": 0.1, "scan": True}, "layers", marks=LONG),
    pytest.param("gpt", {"scan": True}, "dots", marks=LONG),
    pytest.param("t5", {"layers": 1}, "layers", marks=LONG),
    pytest.param("t5", {"scan": True}, "dots", marks=LONG),
    pytest.param("vit", {}, "layers", marks=LONG),
    pytest.param("moe", {}, "dots", marks=LONG),
    *(
        pytest.param(name, {}, policy, marks=LONG)
        for name in ("unet", "convnet", "wide_resnet", "clip", "bert", "sparse_llama", "dlrm", "lstm")
        for policy in ("dots", "layers")
    ),
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
    # What only the backward pass read is not done twice: nothing reads the original any more.
    assert before + 0.99 * done.flops <= flops(module) <= before + done.flops
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves((state, batch))]
    steps.agree(steps.run(str(module), flat), steps.run(text, flat), 1e-6, 1e-6)


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("scan", [False, True])
def test_xla_keeps_less_and_does_the_products_again(scan: bool, gpu_compiler: None) -> None:
    step, state, batch = steps.tiny("gpt", 8, scan=scan, layers=4, width=128, seq_len=256, dtype="bfloat16")
    text = steps.lowered(step, state, batch)
    peaks = {}
    for policy in ("keep", "dots", "layers"):
        module = parse_text(text, make_context())
        again = recompute(module, policy).flops if policy != "keep" else 0
        compiled = compile_module(str(module), "h100")
        assert undone(compiled.hlo_text(), flops(module), again) == 0
        peaks[policy] = compiled.memory_analysis().temp_size_in_bytes
    assert peaks["layers"] < peaks["dots"] < peaks["keep"]
    assert peaks["layers"] < 0.5 * peaks["keep"]


def without_barriers(text: str) -> str:
    """The module with its barriers gone: what they hold back is free to be merged."""
    module = parse_text(text, make_context())
    main = functions.find(module, "main")
    assert main is not None
    for op in [op for op in functions.walk(main) if op.name == "stablehlo.optimization_barrier"]:
        for operand, result in zip(op.operands, op.results, strict=True):
            result.replace_all_uses_with(operand)
        op.erase()
    return str(module)


@pytest.mark.long
def test_what_xla_undid_is_found(gpu_compiler: None) -> None:
    step, state, batch = steps.tiny("gpt")
    module = parse_text(steps.lowered(step, state, batch), make_context())
    done = recompute(module, "layers")
    wanted, text = flops(module), str(module)
    assert undone(compile_module(text, "h100").hlo_text(), wanted, done.flops) == 0
    merged = compile_module(without_barriers(text), "h100").hlo_text()
    assert undone(merged, wanted, done.flops) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("gpt", {"layers": 4}), ("llama", {"scan": True}), pytest.param("t5", {}, marks=LONG)],
)
def test_variants_come_to_what_they_say(name: str, changes: dict[str, Any]) -> None:
    step, state, batch = steps.tiny(name, **changes)
    text = steps.lowered(step, state, batch)
    module = parse_text(text, make_context())
    found = [way.told for way in variants(module)]
    assert str(module) == str(parse_text(text, make_context()))
    assert len(found) > 1
    assert found[0].kept_bytes < kept_bytes(read_step(import_graph(module)))
    for before, way in itertools.pairwise(found):
        assert way.flops >= before.flops
        assert way.kept_bytes < before.kept_bytes
    for way in found:
        other = parse_text(text, make_context())
        assert recompute(other, way.policy, way.count).flops == way.flops
        # What it then keeps is estimated before the loops are rewritten.
        assert kept_bytes(read_step(import_graph(other))) == pytest.approx(way.kept_bytes, rel=0.07)
