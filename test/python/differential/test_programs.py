"""Random programs, planned so that all that can be split is split, compute on 8 devices what they do on one.

The same on every run: `python -m bench.differential` draws others.
"""

from __future__ import annotations

import jax
import pytest

from bench.differential import steps
from bench.differential.clusters import places
from bench.differential.generate import of_seed
from bench.differential.interpreter import is_known
from bench.differential.program import joined
from bench.differential.trial import attempt, case_of_text, interpret, reference
from rhino.plan.module import parse_module

PLACES = ("free-2x4", "free-2x2x2", "free-3x2")


@pytest.mark.parametrize("place", PLACES)
def test_what_was_wrong_once(found: str, place: str) -> None:
    case = case_of_text("found.mlir", found)
    outcome = attempt(case, reference(case), places()[place])
    assert (outcome.kind, outcome.detail) == ("right", "")
    assert outcome.split


@pytest.mark.parametrize("place", [PLACES[0], *(pytest.param(place, marks=pytest.mark.long) for place in PLACES[1:])])
def test_random_programs(place: str) -> None:
    program = joined(of_seed(1, 8))
    with jax.enable_x64(True):
        case = case_of_text("random.mlir", program.text())
        outcome = attempt(case, reference(case), places()[place])
    assert (outcome.kind, outcome.detail) == ("right", "")
    assert outcome.split > 10


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(2, 8))
def test_more_random_programs(seed: int, place: str) -> None:
    with jax.enable_x64(True):
        case = case_of_text("random.mlir", joined(of_seed(seed, 10)).text())
        outcome = attempt(case, reference(case), places()[place])
    assert (outcome.kind, outcome.detail) == ("right", "")


def test_all_programs_are_valid_and_the_same_for_the_same_seed() -> None:
    programs = of_seed(3, 25)
    for program in programs:
        parse_module(program.text(), "random.mlir")  # raises
    assert [p.text() for p in of_seed(3, 25)] == [p.text() for p in programs]
    kinds = {name for program in programs for name in program.names}
    assert {"stablehlo.dot_general", "stablehlo.reduce", "stablehlo.scatter", "stablehlo.convolution"} <= kinds


def test_the_interpreter_agrees() -> None:
    text = max((p.text() for p in of_seed(3, 25) if is_known(p.text())), key=len)
    case = case_of_text("random.mlir", text)
    assert interpret(case, reference(case)).kind == "right"


def test_a_start_that_xla_loses_on_one_device_is_disputed() -> None:
    """Of random bits the interpreter knows nothing; XLA without its simplifier adds the start to the new state."""
    arguments = '[["ui64", 7.0, 0.0, "%a18"], ["ui64", 100.0, 0.0, "%a27"]]'
    text = f"""// differential: {{"seed": 606, "arguments": {arguments}, "tolerances": [0.0]}}
      func.func @main(%a18: tensor<3xui64>, %a27: tensor<ui64>) -> tensor<ui64> {{
        %0:2 = stablehlo.rng_bit_generator %a18, algorithm = PHILOX
          : (tensor<3xui64>) -> (tensor<3xui64>, tensor<7xui8>)
        %1 = stablehlo.reduce(%0#0 init: %a27) applies stablehlo.add across dimensions = [0]
          : (tensor<3xui64>, tensor<ui64>) -> tensor<ui64>
        return %1 : tensor<ui64>
      }}"""
    with jax.enable_x64(True):
        case = case_of_text("state.mlir", text)
        assert attempt(case, reference(case), places()[PLACES[0]], second=True).kind == "disputed"


def test_the_interpreter_is_not_asked_what_ends_it() -> None:
    product = """func.func @main(%a: tensor<8x0x16xi32>, %b: tensor<0x16xi32>) -> tensor<8xi32> {
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1, 2] x [0, 1]
        : (tensor<8x0x16xi32>, tensor<0x16xi32>) -> tensor<8xi32>
      return %0 : tensor<8xi32>
    }"""
    assert not is_known(product)
    assert is_known(product.replace("x0x", "x4x").replace("<0x", "<4x"))


@pytest.mark.long
@pytest.mark.parametrize("place", steps.PLACES)
@pytest.mark.parametrize("seed", range(4))
def test_random_steps_as_pipelines(seed: int, place: str) -> None:
    outcome = steps.attempt(steps.of_seed(seed), place)
    assert outcome.kind in ("right", "refused"), outcome.detail
