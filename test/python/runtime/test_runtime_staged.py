"""Arrays in pieces: made and taken by pipelines, and like the whole array to everything else."""

from __future__ import annotations

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import rhino
from rhino.errors import RhinoError
from rhino.pipeline.program import Fragment, GroupValue, PipelineProgram, Result, StageArgument, Transfer
from rhino.pipeline.program import GroupMesh as Group
from rhino.pipeline.schedule import ScheduledStep, Task
from rhino.runtime import StagedArray, build_program
from rhino.runtime.staged import PiecesLayout, cut

WHOLE = np.arange(24, dtype=np.float32).reshape(6, 4)


def layout(*bounds: tuple[int, int]) -> PiecesLayout:
    places = [NamedSharding(Mesh(np.array([d]), ("device",)), PartitionSpec()) for d in jax.devices()]
    aval = jax.core.ShapedArray((6, 4), np.dtype(np.float32))
    return PiecesLayout(aval, tuple((b,) for b in bounds), tuple(places[: len(bounds)]))


@pytest.fixture
def staged() -> StagedArray:
    kept = layout((0, 2), (2, 3), (3, 6))
    return StagedArray(cut(WHOLE, kept), kept)


def test_pieces_are_rows_on_devices_of_their_own(staged: StagedArray) -> None:
    assert [piece.shape for piece in staged.pieces] == [(2, 4), (1, 4), (3, 4)]
    assert [piece.devices() for piece in staged.pieces] == [{d} for d in jax.devices()[:3]]
    assert (staged.shape, staged.dtype, staged.ndim, staged.size, staged.nbytes) == ((6, 4), np.float32, 2, 24, 96)
    assert "3 pieces" in repr(staged)


def test_it_is_the_whole_array_to_numpy_and_jax(staged: StagedArray) -> None:
    np.testing.assert_array_equal(np.asarray(staged), WHOLE)
    np.testing.assert_array_equal(staged.original(), WHOLE)
    assert staged.original().devices() == {jax.devices()[0]}
    np.testing.assert_array_equal(staged + 1, WHOLE + 1)
    np.testing.assert_array_equal(1 - staged, 1 - WHOLE)
    np.testing.assert_array_equal(jnp.square(staged), WHOLE**2)
    np.testing.assert_array_equal(jax.jit(lambda x: x * 2)(staged), WHOLE * 2)
    np.testing.assert_array_equal(staged[3], WHOLE[3])
    assert float(staged.sum()) == WHOLE.sum()
    assert len(staged) == 6
    assert isinstance(rhino.original({"a": staged})["a"], jax.Array)


def test_it_is_copied_and_pickled_as_an_array(staged: StagedArray) -> None:
    twin = copy.deepcopy(staged)
    staged.delete()
    assert staged.is_deleted() and not twin.is_deleted()
    np.testing.assert_array_equal(np.asarray(twin), WHOLE)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(twin)), WHOLE)


@pytest.mark.parametrize("whole", [WHOLE, WHOLE.tolist(), jnp.asarray(WHOLE)])
def test_any_array_is_cut(whole: object) -> None:
    kept = layout((0, 4), (4, 6))
    assert [np.asarray(piece).tolist() for piece in cut(whole, kept)] == [WHOLE[:4].tolist(), WHOLE[4:].tolist()]


def test_other_pieces_are_cut_again(staged: StagedArray) -> None:
    kept = layout((0, 4), (4, 6))
    assert [np.asarray(piece).tolist() for piece in cut(staged, kept)] == [WHOLE[:4].tolist(), WHOLE[4:].tolist()]


def doubling(devices: tuple[int, ...] = (0, 1), donated: bool = True) -> PipelineProgram:
    """Two stages that each double their rows of one array, and also add a scalar that both read."""
    values = [GroupValue(i, i % 2, (2 + 2 * (i % 2), 4), "f32", ((), ()), "step") for i in range(4)]
    values += [GroupValue(4 + g, g, (), "f32", (), "step") for g in range(2)]
    slices = (((0, 2),), ((2, 6),))
    return PipelineProgram(
        stages=2,
        microbatches=1,
        meshes=tuple(Group(f"stage{g}", (), (d,)) for g, d in enumerate(devices)),
        values=tuple(values),
        arguments=(
            *(StageArgument(s, 0, slices[s], s, donated) for s in range(2)),
            *(StageArgument(4 + g, 1, (), -1, False) for g in range(2)),
        ),
        results=tuple(Result(2 + s, 0, slices[s]) for s in range(2)),
        before=(),
        body=(),
        after=tuple(Fragment(s, "update", s, s, 0, (s, 4 + s), (2 + s,)) for s in range(2)),
        carries=(),
        counters=(-1, -1),
    )


def modules() -> list[str]:
    return [
        jax.jit(lambda x, y: 2 * x + y).lower(jax.ShapeDtypeStruct((rows, 4), "float32"), 1.0).as_text()
        for rows in (2, 4)
    ]


SCHEDULE = ScheduledStep("by hand", 2, 1, tuple((Task("apply", s, level=0),) for s in range(2)))


def test_a_step_takes_and_makes_arrays_in_pieces() -> None:
    pipeline = build_program(doubling(), SCHEDULE, modules())
    (once,) = pipeline.run([WHOLE, np.float32(1)])
    assert isinstance(once, StagedArray)
    (twice,) = pipeline.run([once, np.float32(1)])
    assert once.is_deleted()
    np.testing.assert_array_equal(np.asarray(twice), 4 * WHOLE + 3)
    (again,) = pipeline.run(pipeline.place([WHOLE, np.float32(1)]))
    np.testing.assert_array_equal(np.asarray(again), 2 * WHOLE + 1)
    with pytest.raises(RhinoError, match=r"argument 0 of the step is f32\[4,6\]"):
        pipeline.run([WHOLE.T, np.float32(1)])


def test_an_array_of_another_pipeline_is_taken() -> None:
    (made,) = build_program(doubling((2, 3)), SCHEDULE, modules()).run([WHOLE, np.float32(1)])
    (moved,) = build_program(doubling((0, 1)), SCHEDULE, modules()).run([made, np.float32(1)])
    np.testing.assert_array_equal(np.asarray(moved), 4 * WHOLE + 3)


def test_values_move_between_groups_of_other_sizes_and_wide_types() -> None:
    """A group of four devices sends rows it has split to a group of two, and 64-bit numbers go through."""
    mesh = (("x", 4),), (("x", 2),)
    values = (
        GroupValue(0, 0, (8, 4), "f64", (("x",), ()), "step"),
        GroupValue(1, 0, (8, 4), "f64", (("x",), ()), "step"),
        GroupValue(2, 1, (8, 4), "f64", ((), ("x",)), "step"),
        GroupValue(3, 1, (8, 4), "f64", ((), ("x",)), "step"),
    )
    program = PipelineProgram(
        stages=2,
        microbatches=1,
        meshes=(Group("stage0", mesh[0], (0, 1, 2, 3)), Group("stage1", mesh[1], (4, 5))),
        values=values,
        arguments=(StageArgument(0, 0, (), -1, False),),
        results=(Result(3, 0, ()),),
        before=(
            Fragment(0, "prepare", 0, 0, 0, (0,), (1,)),
            Transfer(0, 1, 2, "prepare", 0, 0, 1),
        ),
        body=(),
        after=(Fragment(1, "update", 1, 1, 0, (2,), (3,)),),
        carries=(),
        counters=(-1, -1),
    )
    texts = [
        f"""
        sdy.mesh @mesh = <["x"={size}]>
        func.func @main(%a: tensor<8x4xf64> {{sdy.sharding = #sdy.sharding<@mesh, {dims}>}})
            -> (tensor<8x4xf64> {{sdy.sharding = #sdy.sharding<@mesh, {dims}>}}) {{
          %0 = stablehlo.add %a, %a : tensor<8x4xf64>
          return %0 : tensor<8x4xf64>
        }}"""
        for size, dims in ((4, '[{"x"}, {}]'), (2, '[{}, {"x"}]'))
    ]
    tasks = (
        (Task("prepare", 0, level=0), Task("send", 0, peer=1, of="prepare", level=0)),
        (Task("recv", 1, peer=0, of="prepare", level=0), Task("apply", 1, level=0)),
    )
    pipeline = build_program(program, ScheduledStep("by hand", 2, 1, tasks), texts)
    given = np.arange(32, dtype=np.float64).reshape(8, 4) + 1e-12
    (found,) = pipeline.run([given])
    assert found.dtype == np.float64
    assert len(found.sharding.device_set) == 2
    np.testing.assert_array_equal(np.asarray(found), 4 * given)
    assert pipeline.transfers() == {(0, 1): 256}
