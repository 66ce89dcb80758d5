"""Programs are cut down to the operations that matter, and joined ones keep apart."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from bench.differential.generate import of_seed
from bench.differential.interpreter import interpreted
from bench.differential.program import Program, data, facts_of, joined
from bench.differential.shrink import smallest
from bench.differential.trial import case_of_text, differences, verdict
from rhino.plan.module import parse_module


@cache
def programs() -> list[Program]:
    return of_seed(5, 60)


def with_op(name: str, least: int) -> Program:
    return next(p for p in programs() if name in [op.name for op in p.ops] and len(p.ops) >= least)


@pytest.mark.parametrize("name", ["stablehlo.reduce", "stablehlo.dot_general", "stablehlo.scatter"])
def test_one_operation_is_left_of_many(name: str) -> None:
    program = with_op(name, 6)
    asked = []

    def fails(part: Program) -> bool:
        asked.append(part)
        return name in [op.name for op in part.ops]

    small = smallest(program, fails)
    assert name in [op.name for op in small.ops]
    assert len(small.ops) < len(program.ops)
    assert len(asked) <= 120
    for part in asked:
        parse_module(part.text(), "part.mlir")  # each is a program


def test_nothing_is_asked_more_often_than_allowed() -> None:
    asked = []
    smallest(with_op("stablehlo.reduce", 6), lambda p: bool(asked.append(p)), attempts=3)
    assert len(asked) == 3


def test_joined_programs_keep_arguments_results_and_tolerances() -> None:
    programs = of_seed(7, 4)
    facts = facts_of(joined(programs).text())
    assert facts is not None
    assert facts["tolerances"] == [o.error for p in programs for o in p.outputs]
    assert len(facts["arguments"]) == sum(len(p.arguments) for p in programs)


def test_arguments_keep_their_elements_when_others_are_cut_away() -> None:
    program = with_op("stablehlo.reduce", 6)
    parts = [program.only([output]) for output in program.outputs]
    small = next(p for p in parts if p.arguments and p.arguments[0] != program.arguments[0])
    whole, part = (case_of_text("program", p.text()).arguments for p in (program, small))
    for argument, got in zip(small.arguments, part, strict=True):
        np.testing.assert_array_equal(got, whole[program.arguments.index(argument)])


def test_exact_arguments_are_whole_numbers_within_their_bound() -> None:
    random = np.random.default_rng(0)
    for dtype, bound in (("f32", 3.0), ("bf16", 2.0), ("ui64", 2.0**64), ("i8", 100.0), ("complex<f32>", 3.0)):
        drawn = data((5, 7), dtype, bound, 0.0, random)
        assert drawn.shape == (5, 7)
        wide = drawn.astype(np.complex128)
        assert (wide == np.round(wide)).all()
        assert np.abs(wide.real).max() <= bound


@pytest.mark.parametrize(
    ("got", "want", "limit", "wrong"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, False),
        ([1.0, 2.1], [1.0, 2.0], 0.05, True),
        ([1.0, 2.1], [1.0, 2.0], 0.2, False),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0, False),
        ([np.nan, 1.0], [0.0, 1.0], 1.0, True),
        ([-np.inf], [np.inf], 1.0, True),
    ],
)
def test_difference(got: list[float], want: list[float], limit: float, wrong: bool) -> None:
    assert bool(differences({0: np.asarray(got)}, [np.asarray(want)], [limit])) == wrong


def test_a_result_of_another_shape_or_type_is_wrong() -> None:
    assert "instead of" in differences({0: np.zeros(2)}, [np.zeros(3)], [1.0])[0]
    assert "instead of" in differences({0: np.zeros(2, np.float32)}, [np.zeros(2)], [1.0])[0]


@pytest.mark.parametrize(
    ("found", "second", "kind"),
    [
        ([[1, 2], [3, 4]], [[1, 9], [3, 4]], "right"),
        ([[1, 9], [3, 4]], [[1, 9], [3, 4]], "disputed"),
        ([[1, 9], [3, 4]], [[1, 9], [3, 5]], "disputed"),  # each result by one of the two
        ([[1, 9], [3, 4]], [[7, 9], [3, 4]], "wrong"),  # a mixture of both is neither
        ([[1, 9], [3, 4]], None, "wrong"),
    ],
)
def test_a_result_is_wrong_if_it_is_right_by_neither_reference(
    found: list[list[int]], second: list[list[int]] | None, kind: str
) -> None:
    one_device = [np.asarray([1, 2]), np.asarray([3, 4])]

    def ask(numbers: Iterable[int]) -> dict[int, np.ndarray]:
        return {} if second is None else {i: np.asarray(second[i]) for i in numbers}

    outcome = verdict(list(map(np.asarray, found)), one_device, (0.0, 0.0), ask)
    assert outcome.kind == kind
    assert outcome.detail.startswith("result 0: 1 of 2") == (kind != "right")


def test_the_interpreter_gives_the_results_that_it_knows() -> None:
    text = """
      func.func @main(%p: tensor<9xi1>, %a: tensor<9xcomplex<f32>>, %n: tensor<9xui32>, %h: tensor<9xbf16>)
          -> (tensor<9xcomplex<f32>>, tensor<9xcomplex<f32>>, tensor<9xui32>, tensor<9xbf16>) {
        %0 = stablehlo.fft %a, type = FFT, length = [9] : (tensor<9xcomplex<f32>>) -> tensor<9xcomplex<f32>>
        %1 = stablehlo.multiply %a, %a : tensor<9xcomplex<f32>>
        %2 = stablehlo.select %p, %1, %a : tensor<9xi1>, tensor<9xcomplex<f32>>
        %3 = stablehlo.add %h, %h : tensor<9xbf16>
        return %0, %2, %n, %3 : tensor<9xcomplex<f32>>, tensor<9xcomplex<f32>>, tensor<9xui32>, tensor<9xbf16>
      }"""
    p, a = np.arange(9) % 3 == 0, (np.arange(9) - 4 + 1j * np.arange(9)).astype(np.complex64)
    half = np.arange(9).astype(ml_dtypes.bfloat16)
    found = interpreted(text, [p, a, np.arange(9, dtype=np.uint32), half], [1, 2, 3])
    np.testing.assert_array_equal(found[1], np.where(p, a * a, a))
    np.testing.assert_array_equal(found[2], np.arange(9))
    np.testing.assert_array_equal(found[3], half + half)
    assert [found[i].dtype for i in (1, 2, 3)] == [np.complex64, np.uint32, half.dtype]
