"""rhino-replicate-fragments: a step whose stages have replicas gives what the step gave, whatever it accumulates."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fragment_interpreter import interpreted
from jaxlib.mlir import ir
from staged_programs import staged_step, with_shardings

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.ir.pipeline.program import read_program
from rhino.passes.pass_manager import PassManager
from rhino.request import CompileRequest
from rhino.runtime import build

ROUNDS = 8
WIDTH = 4
FAST_COMPILE = {"xla_backend_optimization_level": 0}
# Of each accumulator: how it comes together, its type, and whether it starts from an argument instead of nothing.
ACCUMULATORS = (
    ("add", "f32", False), ("add", "f32", True), ("add", "i32", True), ("add", "ui8", True), ("add", "bf16", False),
    ("add", "complex<f32>", False), ("maximum", "f32", True), ("maximum", "f32", False), ("maximum", "i32", False),
    ("minimum", "i32", False), ("maximum", "ui32", False), ("minimum", "ui32", False), ("minimum", "bf16", True),
    ("maximum", "i1", False), ("minimum", "i1", False), ("and", "i1", False), ("or", "i1", True),
    ("and", "ui32", False), ("and", "i32", True), ("or", "i32", False),
    ("write", "f32", False), ("write", "i32", False), ("write", "i1", False), ("write", "complex<f32>", False),
)  # fmt: skip
DTYPES: dict[str, Any] = {
    "f32": np.float32, "bf16": ml_dtypes.bfloat16, "i32": np.int32, "ui8": np.uint8, "ui32": np.uint32, "i1": np.bool_,
    "complex<f32>": np.complex64,
}  # fmt: skip
NUMPY = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or}
NOTHING = {
    ("maximum", "f32"): "0xFF800000", ("maximum", "i32"): str(-(2**31)), ("minimum", "i32"): str(2**31 - 1),
    ("minimum", "ui32"): str(2**32 - 1), ("and", "ui32"): str(2**32 - 1), ("minimum", "i1"): "true",
    ("and", "i1"): "true", ("maximum", "i1"): "false", ("or", "i1"): "false",
}  # fmt: skip
ZERO = {"f32": "0.0", "bf16": "0.0", "i1": "false", "complex<f32>": "(0.0, 0.0)"}


def step() -> str:
    """Accumulators by turns on two stages, each of the rows of an argument of its own, one row a micro-batch."""
    arguments, before, body, types, names, starts = [], [], [], [], [], []
    for k, (kind, element, given) in enumerate(ACCUMULATORS):
        stage = k % 2
        where = f'{{rhino.stage = {{phase = "backward", stage = {stage} : i64}}}}'
        arguments.append(f'%x{k}: tensor<{ROUNDS}x{WIDTH}x{element}> {{rhino.role = "batch"}}')
        row = f"tensor<1x{WIDTH}x{element}>"
        whole = f"tensor<{ROUNDS}x{WIDTH}x{element}>" if kind == "write" else row
        start = f"%s{k}"
        if given:
            arguments.append(f'{start}: {row} {{rhino.role = "other"}}')
        else:
            nothing = NOTHING.get((kind, element), ZERO.get(element, "0"))
            before.append(f"{start} = stablehlo.constant dense<{nothing}> : {whole}")
        body.append(
            f"%r{k} = stablehlo.dynamic_slice %x{k}, %i, %c0, sizes = [1, {WIDTH}] : "
            f"(tensor<{ROUNDS}x{WIDTH}x{element}>, tensor<i32>, tensor<i32>) -> {row}"
        )
        if kind == "write":
            body.append(
                f"%n{k} = stablehlo.dynamic_update_slice %a{k}, %r{k}, %i, %c0 {where} : "
                f"({whole}, {row}, tensor<i32>, tensor<i32>) -> {whole}"
            )
        else:
            body.append(f"%n{k} = stablehlo.{kind} %a{k}, %r{k} {where} : {row}")
        types.append(whole)
        names.append(f"%n{k}")
        starts.append(f"%a{k} = {start}")
    lines = "\n    ".join(body)
    return f"""
func.func @main({", ".join(arguments)}) -> ({", ".join(types)}) {{
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<{ROUNDS}> : tensor<i32>
  {chr(10).join(before)}
  %out:{len(types) + 1} = stablehlo.while(%i = %c0, {", ".join(starts)}) : tensor<i32>, {", ".join(types)}
    attributes {{rhino.microbatches = {{count = {ROUNDS} : i64}}}}
  cond {{
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }} do {{
    {lines}
    %j = stablehlo.add %i, %c1 : tensor<i32>
    stablehlo.return %j, {", ".join(names)} : tensor<i32>, {", ".join(types)}
  }}
  return {", ".join(f"%out#{k + 1}" for k in range(len(types)))} : {", ".join(types)}
}}
"""


def data() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Arguments of `step`, and its results as numpy has them."""
    rng = np.random.default_rng(0)
    arguments, results = [], []
    for kind, element, given in ACCUMULATORS:
        rows = rng.integers(1, 100, (ROUNDS + 1, WIDTH))
        if element == "i1":
            rows = rows > 30
        if element in ("i32", "f32", "bf16"):
            rows -= 50
        rows = rows.astype(DTYPES[element])
        batch = rows[1:]
        arguments.append(batch)
        parts = list(batch[:, None])
        if given:
            parts.insert(0, rows[:1])
            arguments.append(rows[:1])
        want = batch
        if kind != "write":
            want = parts[0]
            for part in parts[1:]:
                want = NUMPY[kind](want, part)
        results.append(want)
    return arguments, results


def replicated(text: str, count: int, options: str = "", schedule: str = "1f1b") -> ir.Module:
    context = make_context()
    module = parse_text(text, context)
    passes = f"rhino-form-fragments{{{options}}},rhino-replicate-fragments{{count={count}}}"
    PassManager.parse(f"builtin.module({passes},rhino-schedule{{schedule={schedule}}})", context).run(module)
    module.operation.verify()
    return module


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_kind_of_accumulator_comes_together(count: int) -> None:
    arguments, want = data()
    module = replicated(step(), count)
    program = read_program(module)
    assert program.microbatches == ROUNDS // count
    assert [len(mesh.devices) for mesh in program.meshes] == [count, count]
    got = build(module, how=CompileRequest(FAST_COMPILE)).run(arguments)
    for found, wanted, accumulator in zip(got, want, ACCUMULATORS, strict=True):
        found = np.asarray(found)
        assert found.dtype == wanted.dtype
        # bfloat16 has 8 bits: the order of additions counts.
        rtol = 0.05 if accumulator[1] == "bf16" else 0
        np.testing.assert_allclose(found, wanted, rtol=rtol, err_msg=str(accumulator))


@pytest.mark.parametrize(
    ("sharded", "options", "schedule"),
    [(False, "", "1f1b"), (False, "split-backward", "zero-bubble"), (True, "", "eager-1f1b")],
    ids=["whole", "split", "sharded"],
)
@pytest.mark.parametrize("seed", range(2))
def test_random_steps_give_the_same(seed: int, sharded: bool, options: str, schedule: str) -> None:
    text = staged_step(seed, 1 if sharded else 2)  # on six of the eight devices
    if sharded:
        text = with_shardings(text, seed)
    original = parse_text(text, make_context())
    main = functions.find(original, "main")
    assert main is not None
    rng = np.random.default_rng(0)
    kinds = main.attributes["function_type"].value.inputs
    arguments = [rng.uniform(0.2, 1.0, tuple(kind.shape)).astype(np.float32) for kind in kinds]
    want = interpreted(original, arguments)
    module = replicated(text, 3, options, schedule)
    got = build(module, how=CompileRequest(FAST_COMPILE)).run(arguments)
    for found, wanted in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-5)
