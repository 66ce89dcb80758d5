"""rhino-form-fragments: a step in fragments gives what the step gave, on random programs and on real models."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from fragment_interpreter import interpreted, run_fragments
from jaxlib.mlir import ir
from staged_programs import staged_step, with_shardings

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoSchedule
from rhino.dialect.context import make_context, parse_text
from rhino.ir.pipeline.outline import outline
from rhino.ir.pipeline.program import read_program
from rhino.passes.pass_manager import PassManager
from rhino.passes.stage.replicate_fragments import ReplicateFragments
from rhino.pipeline.program import FRAGMENT_KINDS, Transfer
from rhino.pipeline.schedule import SCHEDULES, ScheduledStep


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
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_random_steps_give_the_same(stages: int, sharded: bool, options: str) -> None:
    context = make_context()
    for seed in range(3):
        text = staged_step(seed, stages)
        text = with_shardings(text, seed) if sharded else text
        original = parse_text(text, context)
        arguments = random_arguments(original)
        want = interpreted(original, arguments)
        module = fragments(text, context, options)
        named = [(f.kind, f.stage, f.level) for f in read_program(module).fragments]
        assert len(set(named)) == len(named)
        got = run_fragments(module, arguments)
        assert len(got) == len(want)
        for left, right in zip(got, want, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_send_each_transfer_once_per_microbatch_or_step(schedule: str) -> None:
    context = make_context()
    interleaved = schedule == "interleaved-1f1b"
    options = ["split-backward"] * (schedule == "zero-bubble") + ["groups=2"] * interleaved
    for seed in range(3):
        module = fragments(staged_step(seed, 4), context, " ".join(options))
        PassManager.parse(f"builtin.module(rhino-schedule{{schedule={schedule}}})", context).run(module)
        program = read_program(module)
        tasks = ScheduledStep.from_data(RhinoSchedule.of(module)).tasks
        sends = Counter(
            (t.of, t.level or 0, t.stage, t.peer, t.microbatch) for group in tasks for t in group if t.kind == "send"
        )
        looped = {op.index for op in program.body if isinstance(op, Transfer)}
        wanted = {
            (t.of, t.level, t.from_stage, t.to_stage, m)
            for t in program.transfers
            for m in (range(program.microbatches) if t.index in looped else (None,))
        }
        assert wanted
        assert set(sends.values()) == {1}
        assert wanted <= set(sends)
        # What is sent besides goes to another stage on the same group: nothing moves.
        beside = set(sends) - wanted
        assert all(program.group_of(src) == program.group_of(dst) for _, _, src, dst, _ in beside)
        assert bool(beside) <= interleaved


LOOP = ("forward", "backward", "weight")
LAYERS = """
func.func @main(%x: tensor<4xf32> {rhino.role = "batch"}) -> tensor<4xf32> {
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %c0, %a = %zeros) : tensor<i32>, tensor<4xf32>
    attributes {rhino.microbatches = {count = 2 : i64}}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %h0 = stablehlo.negate %x {rhino.stage = {phase = "forward", stage = 0 : i64}} : tensor<4xf32>
    %h1 = stablehlo.tanh %h0 {rhino.stage = {phase = "forward", stage = 1 : i64}} : tensor<4xf32>
    %h2 = stablehlo.tanh %h1 {rhino.stage = {phase = "forward", stage = 2 : i64}} : tensor<4xf32>
    %b = stablehlo.add %a, %h2 {rhino.stage = {phase = "backward", stage = 2 : i64}} : tensor<4xf32>
    %c1 = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}
"""


def test_equal_fragments_have_equal_keys() -> None:
    module = fragments(LAYERS, make_context())
    found = read_program(module).fragments
    keys = {(f.kind, f.stage): o.key for f, o in zip(found, outline(module), strict=True)}
    assert keys["forward", 1] == keys["forward", 2] != keys["forward", 0]
    again = outline(fragments(LAYERS, make_context()))
    assert [fragment.key for fragment in again] == list(keys.values())


def test_a_stage_has_one_fragment_per_level() -> None:
    context = make_context()
    module = fragments('sdy.mesh @mesh = <["x"=1]>' + LAYERS, context)
    PassManager(context).add(ReplicateFragments(count=2)).run(module)
    found = read_program(module).fragments
    # Zeros, which are spread over the replicas where they are made; they are added up again.
    assert [(f.kind, f.level) for f in found if f.kind not in LOOP] == [("prepare", 0), ("update", 0)]


def test_outlined_fragment_carries_the_donation_asked_for() -> None:
    module = fragments(staged_step(0, 2), make_context())
    (index,) = (f.index for f in read_program(module).fragments if (f.kind, f.stage) == ("backward", 0))
    plain, donated = outline(module)[index], outline(module, {index: {0: -1, 1: 0}})[index]
    assert "jax.buffer_donor" not in plain.text
    assert "jax.buffer_donor = true" in donated.text
    assert "tf.aliasing_output = 0 : i32" in donated.text
    assert plain.key != donated.key


def test_program_of_the_text_is_that_of_the_module() -> None:
    context = make_context()
    module = fragments(staged_step(1, 4), context, "split-backward")
    program = read_program(module)
    assert read_program(parse_text(str(module), context)) == program
    assert [fragment.index for fragment in program.fragments] == list(range(len(program.fragments)))
    assert {fragment.kind for fragment in program.fragments} == set(FRAGMENT_KINDS)
    found = program.find("forward", 2)
    assert found is not None
    assert (found.task, found.group) == ("forward", 2)
    assert program.find("forward", 9) is None
