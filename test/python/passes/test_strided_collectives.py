"""What splitting a fused matrix over devices costs once XLA compiled it: nothing that a matrix per thing would not.

Each pair is a training step whose weights are split by columns, and by rows where they read what was made.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import optax
import pytest
from jaxlib.mlir import ir
from search_programs import host
from strided_programs import FUSED, PAIRS, Layer, lowered, train_step, values

from rhino.compile import collective_bytes, compile_module
from rhino.dialect import functions, sdy
from rhino.dialect.locations import argument_name
from rhino.ir.import_graph import import_graph
from rhino.ir.write_layouts import annotate
from rhino.sharding import Options, plan_sharding

MOVING = {"collective-permute", "all-to-all"}


def split_over(module: ir.Module, devices: int) -> str:
    """The module with shardings on its state, and on the results that alias it, over all devices; data is whole."""
    main = functions.find(module, "main")
    assert main is not None
    sdy.add_mesh(module, "mesh", [("x", devices)])
    arguments, results = functions.argument_attributes(main), functions.result_attributes(main)
    for i, (value, given) in enumerate(zip(main.regions[0].blocks[0].arguments, arguments, strict=True)):
        dims: list[tuple[str, ...]] = [()] * len(value.type.shape)
        leaf = re.search(r"\['(\w+)'\]$", argument_name(value, i))
        if leaf and dims:
            dims[-2 if leaf[1] == "o" else -1] = ("x",)
        given["sdy.sharding"] = sdy.tensor_sharding(module.context, "mesh", dims)
        if "tf.aliasing_output" in given:
            results[given["tf.aliasing_output"].value]["sdy.sharding"] = given["sdy.sharding"]
    functions.set_argument_attributes(main, arguments)
    functions.set_result_attributes(main, results)
    return str(module)


def compiled_bytes(layer: Layer, expose: bool, target: str = "cpu", **options: Any) -> dict[str, int]:
    """Bytes by kind of collective of the step on four devices."""
    module = lowered(*train_step(layer, options.pop("width", 16), **options), expose)
    return collective_bytes(compile_module(split_over(module, 4), target, devices=4).collectives())


@pytest.mark.parametrize(
    ("name", "scan"),
    [
        pytest.param(name, scan, id=f"{name}-{kind}", marks=[pytest.mark.long] * (name != "qkv" and not scan))
        for name in PAIRS
        for kind, scan in (("unrolled", False), ("scanned", True))
    ],
)
def test_no_more_is_sent_than_with_a_matrix_per_thing(name: str, scan: bool) -> None:
    fused, by_hand = PAIRS[name]
    options = {"scan": scan, "layers": 2 if scan else 1}
    found, hand = compiled_bytes(fused, True, **options), compiled_bytes(by_hand, False, **options)
    assert MOVING.isdisjoint(found)
    assert set(found) == set(hand)
    # Less in places: one all-reduce for the gradient of the input where XLA makes one per matrix.
    assert all(found[kind] <= hand[kind] for kind in found), (found, hand)


def test_without_the_pass_data_moves() -> None:
    assert set(compiled_bytes(PAIRS["qkv"][0], False, layers=1)) >= MOVING


def test_attention_sends_exactly_what_the_hand_split_one_does() -> None:
    # Without clipping, whose norms are a scalar per tensor, and so four more by hand.
    options = {"layers": 1, "optimizer": optax.adam(1e-3)}
    fused, by_hand = PAIRS["qkv"]
    assert compiled_bytes(fused, True, **options) == compiled_bytes(by_hand, False, **options)


@pytest.mark.parametrize("name", ["qkv by_index", "swiglu by_slices", "heads by einops", "lstm concatenated"])
def test_other_styles_move_nothing(name: str) -> None:
    assert MOVING.isdisjoint(compiled_bytes(FUSED[name], True, layers=1))


@pytest.mark.parametrize("name", ["qkv", "swiglu", "lstm", "gru"])
def test_four_devices_compute_what_one_does(name: str) -> None:
    step = train_step(PAIRS[name][0], 16, batch=2, time=3, scan=True)
    before, after = lowered(*step, expose=False), lowered(*step, expose=True)
    given = values(before)
    given = [abs(a) for a in given]  # second moments are not negative
    main = functions.find(after, "main")
    assert main is not None
    shapes = [tuple(kind.shape) for kind in main.attributes["function_type"].value.inputs]
    executable = compile_module(split_over(after, 4), "cpu", devices=4)
    results = executable(*(a.reshape(shape) for a, shape in zip(given, shapes, strict=True)))
    for want, got in zip(compile_module(str(before), "cpu", devices=1)(*given), results, strict=True):
        np.testing.assert_allclose(np.reshape(got, want.shape), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["qkv", "grouped kv", "swiglu"])
def test_the_search_splits_every_chunk(name: str) -> None:
    # One sequence of 8 and wide matrices: weights are dear to move, activations are not.
    module = lowered(*train_step(PAIRS[name][0], 2048, batch=1, scan=True), expose=True)
    graph = import_graph(module)
    solution = plan_sharding(graph, host(4), Options(mesh=(4,)))
    shapes = [graph.values[argument.value].shape for argument in graph.arguments]
    chunked = [
        solution.dims(argument.value)
        for argument, shape in zip(graph.arguments, shapes, strict=True)
        if len(shape) == 4  # layers, rows, chunks, chunk
    ]
    assert len(chunked) == 3
    assert all(dims == ((), (), (), ("x",)) for dims in chunked)
    annotate(module, graph, solution)
    compiled = compile_module(str(module), "cpu", devices=4)
    assert MOVING.isdisjoint(collective_bytes(compiled.collectives()))


@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize("name", ["qkv", "swiglu", "lstm"])
def test_nothing_moves_on_h100s(name: str) -> None:
    assert MOVING.isdisjoint(compiled_bytes(PAIRS[name][0], True, "h100", width=64, scan=True))
