"""rhino-form-fragments: a step in fragments gives what the step gave, on random programs and on real models."""

from __future__ import annotations

import numpy as np
import pytest
from fragment_interpreter import interpreted, run_fragments
from jaxlib.mlir import ir
from staged_programs import staged_step

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.passes.pass_manager import PassManager
from rhino.passes.stage.read_program import read_program
from rhino.pipeline import Fragment, Transfer


def random_arguments(module: ir.Module) -> list[np.ndarray]:
    main = functions.find(module, "main")
    assert main is not None
    rng = np.random.default_rng(0)
    kinds = main.attributes["function_type"].value.inputs
    return [rng.uniform(0.2, 1.0, tuple(kind.shape)).astype(np.float32) for kind in kinds]


def fragments(text: str, context: ir.Context, options: str = "") -> ir.Module:
    module = parse_text(text, context)
    PassManager.parse(f"builtin.module(rhino-form-fragments{{{options}}})", context).run(module)
    return module


@pytest.mark.parametrize("options", ["", "split-backward", "groups=2", "groups=1 split-backward"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_random_steps_give_the_same(stages: int, options: str) -> None:
    context = make_context()
    for seed in range(4):
        text = staged_step(seed, stages)
        original = parse_text(text, context)
        arguments = random_arguments(original)
        want = interpreted(original, arguments)
        module = fragments(text, context, options)
        got = run_fragments(module, arguments)
        assert len(got) == len(want)
        for left, right in zip(got, want, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
