"""rhino-classify-args on programs that jax lowers, and its time on a large one. Cases in IR: test/normalize."""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path
from types import ModuleType

import pytest
from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_text
from rhino.dialect.locations import argument_name
from rhino.passes.pass_manager import PassManager
from rhino.program.roles import ArgumentFlow, ProgramFlow, decide


def load_programs() -> ModuleType:
    path = Path(__file__).with_name("jax_programs.py")
    spec = importlib.util.spec_from_file_location("jax_programs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROGRAMS = load_programs()


def roles(module: ir.Module) -> list[tuple[str, str]]:
    (main,) = [f for f in functions.all_functions(module) if functions.name_of(f) == "main"]
    names = [argument_name(a, i) for i, a in enumerate(main.regions[0].blocks[0].arguments)]
    return list(zip(names, [a["rhino.role"].value for a in functions.argument_attributes(main)], strict=True))


@pytest.mark.parametrize("program", PROGRAMS.PROGRAMS)
def test_roles_of_real_programs(program: str) -> None:
    context = make_context()
    text = PROGRAMS.PROGRAMS[program]()
    module = parse_text(text, context)
    PassManager(context).add("rhino-classify-args").run(module)
    found = roles(module)
    wrong = [(name, role) for name, role in found if role != PROGRAMS.ROLES[name[0]]]
    assert not wrong
    # Inlining first changes nothing.
    inlined = parse_text(text, context)
    PassManager(context).add("inline").add("symbol-dce").add("rhino-classify-args").run(inlined)
    assert roles(inlined) == found


def test_only_roles_are_added() -> None:
    context = make_context()
    module = parse_text(PROGRAMS.mlp_step(PROGRAMS.optax.adam(1e-3), donate=True), context)
    before = str(module)
    PassManager(context).add("rhino-classify-args").run(module)
    assert re.sub(r'rhino\.role = "\w+",? ?', "", str(module)).replace(" {}", "") == before


def large_program(layers: int) -> str:
    """A chain of `layers` blocks of 15 operations with a weight and its momentum each."""
    state = ", ".join(
        f"%{name}{i}: tensor<8x8xf32> {{tf.aliasing_output = {2 * i + offset} : i32}}"
        for i in range(layers)
        for offset, name in enumerate("wm")
    )
    matrix, data = "tensor<8x8xf32>", "tensor<16x8xf32>"
    body, results = [], []
    h = "%x"
    for i in range(layers):
        body.append(
            f"%h{i} = stablehlo.dot_general {h}, %w{i}, contracting_dims = [1] x [0] : ({data}, {matrix}) -> {data}"
        )
        for j in range(5):
            body.append(f"%h{i}_{j} = stablehlo.tanh %h{i}{f'_{j - 1}' if j else ''} : {data}")
        h = f"%h{i}_4"
        body.append(
            f"%g{i} = stablehlo.dot_general {h}, {h}, contracting_dims = [0] x [0] : ({data}, {data}) -> {matrix}"
        )
        for j in range(6):
            body.append(f"%g{i}_{j} = stablehlo.negate %g{i}{f'_{j - 1}' if j else ''} : {matrix}")
        body.append(f"%n{i} = stablehlo.add %m{i}, %g{i}_5 : {matrix}")
        body.append(f"%v{i} = stablehlo.subtract %w{i}, %n{i} : {matrix}")
        results += [f"%v{i}", f"%n{i}"]
    types = ", ".join([matrix] * len(results) + [data])
    return "func.func @main({}, %x: {}) -> ({}) {{\n{}\nreturn {} : {}\n}}".format(
        state, data, types, "\n".join(body), ", ".join([*results, h]), types
    )


def test_time_is_linear_and_under_a_second_for_45_thousand_operations() -> None:
    context = make_context()
    module = parse_text(large_program(3000), context)
    start = time.process_time()
    PassManager(context).add("rhino-classify-args").run(module)
    seconds = time.process_time() - start
    found = roles(module)
    assert [role for _, role in found] == ["param", "opt_state"] * 3000 + ["batch"]
    # Under a second on an idle machine; the limit leaves room for a busy one.
    assert seconds < 3, seconds


def decided(*flows: ArgumentFlow, outputs: tuple[int, ...]) -> list[str]:
    return [decision.role for decision in decide(ProgramFlow(flows, outputs))]


def test_data_is_recognised_by_most_of_its_elements() -> None:
    flows = [
        ArgumentFlow((8, 4), "f32", computes=True, first_use="weight"),
        ArgumentFlow((64, 8), "f32", computes=True, first_use="data"),
        ArgumentFlow((64,), "i1"),
        ArgumentFlow((12,), "f32"),
        ArgumentFlow((64, 3), "ui8"),
        ArgumentFlow((64,), "f32"),  # no output depends on it
    ]
    assert decided(*flows, outputs=(0b011111,)) == ["param", "batch", "batch", "other", "batch", "other"]


def test_keys_in_the_state_are_other() -> None:
    key = ArgumentFlow((2,), "ui32", alias=0, donated=True)
    count = ArgumentFlow((), "i32", alias=1, donated=True)
    assert decided(key, count, outputs=(0b01, 0b10)) == ["other", "opt_state"]


def test_an_aliased_argument_that_its_output_ignores_is_no_state() -> None:
    weight = ArgumentFlow((8, 8), "f32", alias=0, donated=True, computes=True, first_use="weight")
    data = ArgumentFlow((16, 8), "f32", alias=1, donated=True, computes=True, first_use="data")
    assert decided(weight, data, outputs=(0b11, 0b01)) == ["param", "batch"]


def test_state_that_is_not_donated_is_recognised_by_its_type() -> None:
    weight = ArgumentFlow((8, 8), "f32", alias=0, donated=True, computes=True, first_use="weight")
    momentum = ArgumentFlow((8, 8), "f32", becomes=frozenset({0, 1}))
    data = ArgumentFlow((16, 8), "f32", computes=True, first_use="data")
    assert decided(weight, momentum, data, outputs=(0b111, 0b111, 0b101)) == ["param", "opt_state", "batch"]
