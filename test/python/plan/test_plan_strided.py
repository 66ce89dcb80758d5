"""Tensors stored with dimensions cut into factors: what a plan says of them, and how their original can be split."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from rhino.api.plan import Plan
from rhino.plan import Sharding, Tensor
from rhino.plan.strided import common_sharding, factors_of, original_sharding

MODULE = """
module attributes {rhino.plan = {schema = 1 : i64, level = "O1", cluster = "dgx-h100:1", mesh = [["x", 2 : i64],
  ["y", 4 : i64]], stages = 1 : i64, microbatches = 1 : i64, schedule = "none", program = "abc",
  predicted = {step_time_s = 1.0e-3 : f64, compute_s = 8.0e-4 : f64, comm_s = 2.0e-4 : f64, bubble_s = 0.0 : f64,
    peak_bytes = 4096 : i64, comm_bytes = {}}}} {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func public @main(
      %arg0: tensor<8x3x4xf32> {rhino.role = "param", rhino.name = "w", tf.aliasing_output = 1 : i32,
        rhino.strided = {shape = [8, 12], dims = [{dim = 1 : i64, factors = [3, 4]}]},
        sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>},
      %arg1: tensor<8x12xf32> {rhino.role = "param", rhino.name = "v"}) -> (
        tensor<8x12xf32>, tensor<8x3x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {"y"}]>}) {
    return %arg1, %arg0 : tensor<8x12xf32>, tensor<8x3x4xf32>
  }
}
"""
STRIDED: Sharding = (("x",), (), ("y",))


def test_arguments_and_the_results_that_alias_them_have_both_shapes() -> None:
    plan = Plan.from_module(MODULE)
    assert plan.arguments == (
        Tensor("w", "param", (8, 12), "f32", STRIDED, stored_shape=(8, 3, 4)),
        Tensor("v", "param", (8, 12), "f32", ((), ())),
    )
    assert [(t.shape, t.stored_shape, t.is_strided) for t in plan.outputs] == [
        ((8, 12), (8, 12), False),
        ((8, 12), (8, 3, 4), True),
    ]


def test_files_keep_both_shapes(tmp_path: Path) -> None:
    plan = Plan.from_module(MODULE)
    plan.save(tmp_path / "a.json")
    loaded = Plan.load(tmp_path / "a.json")
    assert loaded == plan
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    first, second = plan.to_dict()["arguments"]
    assert (first["shape"], first["stored_shape"], first["sharding"]) == ([8, 12], [8, 3, 4], [["x"], [], ["y"]])
    assert "stored_shape" not in second


def test_reports_show_both_shapes_and_do_not_group_different_ones() -> None:
    text = Plan.from_module(MODULE).summary()
    assert "f32[8,12] as [8,3,4]   {x, -, y}" in text
    assert "f32[8,12]              {-, -}" in text


@pytest.mark.parametrize(
    ("shape", "stored", "groups"),
    [
        ((8, 12), (8, 3, 4), ((0,), (1, 2))),
        ((12, 8), (3, 4, 8), ((0, 1), (2,))),
        ((12, 12), (3, 4, 2, 6), ((0, 1), (2, 3))),
        ((24,), (2, 3, 4), ((0, 1, 2),)),
        ((2, 1, 4), (2, 1, 2, 2), ((0,), (1,), (2, 3))),
        ((4, 1), (2, 2, 1), ((0, 1), (2,))),
        ((4,), (4, 1), ((0, 1),)),
        ((), (), ()),
        ((8, 12), (8, 4, 4), None),
        ((8, 12), (96,), None),
        ((8, 12), (4, 24), None),
        ((4,), (), None),
    ],
)
def test_factors(shape: tuple[int, ...], stored: tuple[int, ...], groups: tuple[tuple[int, ...], ...] | None) -> None:
    assert factors_of(shape, stored) == groups


def test_the_original_has_as_many_equal_parts_and_always_can() -> None:
    sizes = {"x": 2, "y": 4}
    shape, stored = (8, 24), (8, 2, 12)
    choices: list[tuple[str, ...]] = [(), ("x",), ("y",), ("y", "x"), ("x", "y")]
    checked = 0
    for sharding in itertools.product(choices, repeat=3):
        axes = [axis for dim in sharding for axis in dim]
        parts = [math.prod(sizes[axis] for axis in dim) for dim in sharding]
        if len(axes) != len(dict.fromkeys(axes)) or any(n % k for n, k in zip(stored, parts, strict=True)):
            continue
        found = original_sharding(shape, stored, sharding)
        assert sorted(axis for dim in found for axis in dim) == sorted(axes)
        for size, dim in zip(shape, found, strict=True):
            assert size % math.prod(sizes[axis] for axis in dim) == 0
        checked += 1
    assert checked > 10
    assert original_sharding((8, 12), (8, 3, 4), STRIDED) == (("x",), ("y",))


@pytest.mark.parametrize(
    ("stored", "sharding", "common"),
    [
        ((8, 3, 4), (("x",), (), ("y",)), (("x", "y"), (), ())),  # the axis of an inner factor moves
        ((8, 3, 4), (("y",), (), ("x",)), (("y", "x"), (), ())),
        ((8, 2, 6), ((), ("x",), ()), ((), ("x",), ())),  # that of a major factor stays
        ((8, 4, 3), ((), ("y",), ()), ((), ("y",), ())),
        ((8, 2, 6), (("y",), ("x",), ()), (("y",), ("x",), ())),
        ((4, 2, 6), ((), (), ("x",)), (("x",), (), ())),
        ((2, 2, 8), ((), ("x",), ("y",)), ((), ("x",), ("y",))),  # the major factor is split to single elements
        ((3, 3, 8), ((), (), ("y",)), ((), (), ())),  # no room anywhere
    ],
)
def test_a_sharding_that_both_shapes_can_have(stored: tuple[int, ...], sharding: Sharding, common: Sharding) -> None:
    shape = (stored[0], stored[1] * stored[2])
    assert common_sharding(shape, stored, sharding, {"x": 2, "y": 4}) == common
    whole = original_sharding(shape, stored, common)
    assert all(size % math.prod({"x": 2, "y": 4}[a] for a in dim) == 0 for size, dim in zip(shape, whole, strict=True))
