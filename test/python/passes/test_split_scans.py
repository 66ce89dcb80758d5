"""rhino-split-scans on programs as jax lowers them: the results stay the same, and no array of all layers is left."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from scan_programs import LAYERS, LOSSES, OPTIMIZERS, accumulating, counted, normalised, plain, training

from rhino.compile import compile_module
from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager


def values(module: ir.Module) -> list[np.ndarray]:
    """Small random arguments."""
    random = np.random.default_rng(0)
    main = functions.find(module, "main")
    assert main is not None
    integers = {"i32": np.int32, "ui32": np.uint32, "i1": np.bool_}
    found = []
    for kind in main.attributes["function_type"].value.inputs:
        dtype = integers.get(str(kind.element_type))
        drawn = random.uniform(0.05, 0.5, kind.shape) if dtype is None else random.integers(1, 3, kind.shape)
        found.append(np.asarray(drawn, dtype or np.float32))
    return found


def split(text: str, count: int, passes: str = "") -> tuple[str, dict[str, int]]:
    """The module with its scans split, and the statistics of that."""
    module = parse_text(text, make_context())
    pipeline = f"builtin.module(rhino-split-scans{{count={count}}},canonicalize{passes})"
    result = PassManager.parse(pipeline, module.context).run(module)
    return str(module), dict(result.statistics)["rhino-split-scans"]


def interpreted(text: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The results by StableHLO's interpreter, which has no chlo."""
    module = parse_text(text, make_context())
    PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))", module.context).run(module)
    main = functions.find(module, "main")
    assert main is not None
    with module.context:
        kinds = main.attributes["function_type"].value.inputs
        given = [element(a, kind) for a, kind in zip(arguments, kinds, strict=True)]
        return [np.array(out, np.float64) for out in stablehlo.eval_module(module, given)]


def element(array: np.ndarray, kind: Any) -> ir.DenseElementsAttr:
    """An argument of the interpreter."""
    if array.dtype == np.bool_:  # numpy's booleans are bytes, MLIR's are bits
        return ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(kind.element_type, int(array.all())))
    return ir.DenseElementsAttr.get(array, type=kind)


def check_same(program: tuple[Any, tuple[Any, ...]], count: int) -> tuple[str, dict[str, int]]:
    """Assert that the split program gives what the original does; returns it and its statistics."""
    module = normalised(*program)
    text, arguments = str(module), values(module)
    after, statistics = split(text, count)
    for got, want in zip(interpreted(after, arguments), interpreted(text, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    return after, statistics


def arrays_of_layers(text: str) -> list[str]:
    """Where arrays of all layers are made or read, apart from the arguments' slices and the results."""
    lines = [line.strip() for line in text.splitlines() if re.search(rf"[<x]{LAYERS}x", line)]
    boundary = re.compile(r"func\.func|return|%\S+ = stablehlo\.slice %arg|%\S+ = stablehlo\.concatenate")
    return [line for line in lines if not boundary.match(line)]


@pytest.mark.parametrize("loss", LOSSES)
def test_losses(loss: str) -> None:
    after, statistics = check_same(training(LOSSES[loss]), 3)
    # Over time, jax makes what needs no time step, the biases of all layers, in a loop of its own.
    assert statistics["loops"] == (3 if loss == "over_time" else 2)
    assert statistics["joined"] == 0
    assert not arrays_of_layers(after)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: str) -> None:
    after, statistics = check_same(training(plain, OPTIMIZERS[optimizer]), 4)
    assert statistics["loops"] == 2
    # Muon takes a stack of biases for a matrix and mixes the layers: for that they are put together.
    assert (statistics["joined"] > 0) == (optimizer == "muon")
    assert optimizer == "muon" or not arrays_of_layers(after)


@pytest.mark.parametrize("program", [accumulating, counted])
def test_loops(program: Any) -> None:
    after, statistics = check_same(program(), 2)
    assert statistics["loops"] == (2 if program is accumulating else 1)
    assert not arrays_of_layers(after)


@pytest.mark.parametrize(("count", "loops"), [(1, 2), (2, 4), (4, 8), (6, 12), (9, 12)])
def test_counts(count: int, loops: int) -> None:
    text = str(normalised(*training(plain)))
    after, _ = split(text, count)
    assert after.count("stablehlo.while") == loops
    again, statistics = split(after, count)
    # Each loop is split again if it has more than one trip: the pass is not asked for the same twice.
    assert statistics["loops"] == (0 if count in (1, 6, 9) else loops - 4 * (count == 4))
    assert again.count("stablehlo.while") >= loops


def test_one_number_per_piece_for_the_norm() -> None:
    """The gradient norm over all stacked parameters adds per piece first: count - 1 additions join the pieces."""
    before = str(normalised(*training(plain, OPTIMIZERS["clipped adam"])))
    after, _ = split(before, 3)
    added = [
        len(re.findall(r"stablehlo.add .*: tensor<f32>", text.rsplit("stablehlo.while", 1)[1]))
        for text in (before, after)
    ]
    # Two parameters: one addition of their sums before, one per piece after, and two between the pieces.
    assert added[1] - added[0] == 3 - 1 + 2


def test_deterministic() -> None:
    text = str(normalised(*training(plain, OPTIMIZERS["lamb"])))
    assert split(text, 3) == split(text, 3)


def test_planned_on_eight_devices() -> None:
    module = normalised(*training(plain, OPTIMIZERS["clipped adam"]))
    text, arguments = str(module), values(module)
    after, _ = split(text, 2, ",rhino-plan-sharding{topology=dgx-h100:1 mesh=8}")
    assert "sdy.mesh" in after
    for got, want in zip(
        compile_module(after, "cpu", devices=8)(*arguments), interpreted(text, arguments), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_micro_batches_inside() -> None:
    """A later pass puts all the loops into one over micro-batches."""
    module = normalised(*training(plain))
    text, arguments = str(module), values(module)
    after, _ = split(text, 3, ",rhino-split-microbatch{count=2}")
    assert after.count("stablehlo.while") == 7
    for got, want in zip(interpreted(after, arguments), interpreted(text, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
