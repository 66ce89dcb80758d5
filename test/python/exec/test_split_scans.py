"""Scanned models with their loops over layers split: StableHLO's interpreter gives what it gave before.

The models are the examples, training with Adam and clipping, small but for 5 layers: no other dimension is 5.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from examples.export import lower
from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.ir.import_graph import import_graph
from rhino.passes.pass_manager import PassManager

LAYERS = 5
GPT = {"width": 8, "heads": 2, "vocab": 16, "seq_len": 4}
SMALL: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "gpt remat": GPT | {"remat": True},
    "t5": {"width": 8, "heads": 2, "head_dim": 4, "hidden": 16, "vocab": 16, "seq_len": 4, "target_len": 4},
    "moe": {"width": 8, "heads": 2, "experts": 2, "group": 8, "vocab": 16, "seq_len": 4, "layers": 2 * LAYERS},
    "vit": {"width": 8, "heads": 2, "patch": 4, "image": 4},
}


def model_step(name: str) -> ir.Module:
    """A model's training step, normalised."""
    family = name.split()[0]
    model = importlib.import_module(f"examples.models.{family}")
    config = dataclasses.replace(model.PRESETS["tiny"], **({"layers": LAYERS, "scan": True} | SMALL[name]))
    _, step = model.make_train_step(config)
    text = str(lower(step, *model.abstract_inputs(config, 2)))
    return transformed(text, "rhino-inline,symbol-dce,canonicalize,rhino-classify-args")


def transformed(text: str, passes: str) -> ir.Module:
    module = parse_text(text, make_context())
    PassManager.parse(f"builtin.module({passes})", module.context).run(module)
    return module


def arguments(module: ir.Module) -> list[np.ndarray]:
    """Random arguments; whole numbers are classes and small indices."""
    random = np.random.default_rng(0)
    main = functions.find(module, "main")
    assert main is not None
    found = []
    for kind in main.attributes["function_type"].value.inputs:
        whole = str(kind.element_type) == "i32"
        drawn = random.integers(0, 4, kind.shape) if whole else random.uniform(0.05, 0.5, kind.shape)
        found.append(np.asarray(drawn, np.int32 if whole else np.float32))
    return found


def interpreted(module: ir.Module, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    plain = transformed(str(module), "func.func(chlo-legalize-to-stablehlo)")
    with plain.context:
        return [np.array(out) for out in stablehlo.eval_module(plain, [ir.DenseElementsAttr.get(a) for a in given])]


def arrays_of_layers(module: ir.Module) -> list[str]:
    """The operations that make an array with a dimension of all layers; the results of @main are made last."""
    main = functions.find(module, "main")
    assert main is not None
    returned = set(list(main.regions[0].blocks[0].operations)[-1].operands)
    return [
        str(op)
        for op in functions.walk(main)
        for result in op.results
        if LAYERS in ir.RankedTensorType(result.type).shape and result not in returned
    ]


@pytest.mark.parametrize("model", [pytest.param(m, marks=[pytest.mark.long] * (m in ("moe", "vit"))) for m in SMALL])
def test_models(model: str) -> None:
    module = model_step(model)
    text, given = str(module), arguments(module)
    expected = interpreted(module, given)
    assert all(np.isfinite(out).all() for out in expected)
    for count in (2, 3, 4) if model == "gpt" else (3,):
        after = transformed(text, f"rhino-split-scans{{count={count}}},canonicalize")
        loops = len(re.findall("stablehlo.while", str(after)))
        assert loops == count * len(re.findall("stablehlo.while", text))
        assert not arrays_of_layers(after)
        for got, want in zip(interpreted(after, given), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=5e-5, atol=1e-6)


def test_trip_counts_are_known() -> None:
    """The importer, and with it the planner, sees how often the bodies run: as often as before in all."""
    after = transformed(str(model_step("gpt")), "rhino-split-scans{count=3},canonicalize")
    loops = [op for op in import_graph(after).ops if op.name == "stablehlo.while"]
    assert [op.iterations for op in loops] == [1, 2, 2, 2, 2, 1]


def test_stages_are_cut_between_the_loops() -> None:
    """What the pass is for: the forward loops are stages 0 and 1, the backward loops 1 and 0."""
    passes = "rhino-split-scans{count=2},canonicalize,rhino-split-microbatch{count=2},canonicalize"
    staged = transformed(str(model_step("gpt")), f"{passes},rhino-plan-stages{{stages=2 topology=dgx-h100:1}}")
    main = functions.find(staged, "main")
    assert main is not None
    loops = [op for op in functions.walk(main) if op.name == "stablehlo.while" and "rhino.stage" in op.attributes]
    stages = [(str(op.attributes["rhino.stage"]["phase"]), int(op.attributes["rhino.stage"]["stage"])) for op in loops]
    assert stages == [('"forward"', 0), ('"forward"', 1), ('"backward"', 1), ('"backward"', 0)]
