"""The catalogue of what devices can reduce together, against XLA's two back ends: all of it in one program.

Every reducer and type is there, those that the catalogue has not too: these must be kept whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax
import ml_dtypes
import numpy as np
import pytest

from rhino.compile import compile_module
from rhino.program.partial import combined

FLOATS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64}
INTEGERS = {f"{s}i{n}": f"{'u' if s else ''}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)}
COMPLEX = {"complex<f32>": np.complex64, "complex<f64>": np.complex128}
SMALL = ("f8E4M3FN", "f8E5M2", "f4E2M1FN")  # no arguments of a step: converted inside
TYPES = {"i1": np.bool_, **INTEGERS, **FLOATS, **COMPLEX, **dict.fromkeys(SMALL, np.float32)}
ROWS, COLUMNS = 16, 2

NUMPY = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip
BITS = ("and", "or", "xor")
# a + b + a b, which no all-reduce knows, though it starts with an addition.
OTHER = "other"


def cases(types: Iterable[str] = TYPES) -> Iterator[tuple[str, str]]:
    for dtype in types:
        for kind in (*NUMPY, OTHER):
            if kind in BITS and (dtype in FLOATS or dtype in COMPLEX or dtype in SMALL):
                continue
            if kind in ("maximum", "minimum") and dtype in COMPLEX:
                continue  # on no device
            yield kind, dtype


def reduction(i: int, kind: str, dtype: str, window: bool) -> str:
    """Reduces %x<i>, from 1 whatever the reducer; by one window over all rows, which XLA makes a reduction."""
    scalar, wide = f"tensor<{dtype}>", f"tensor<{ROWS}x{COLUMNS}x{dtype}>"
    one = "true" if dtype == "i1" else "(1.0, 0.0)" if dtype in COMPLEX else "1.0" if "f" in dtype else "1"
    body = f"%s = stablehlo.{kind} %a, %b : {scalar}"
    if kind == OTHER:
        body = f"""%p = stablehlo.add %a, %b : {scalar}
      %q = stablehlo.multiply %a, %b : {scalar}
      %s = stablehlo.add %p, %q : {scalar}"""
    given = f"%x{i}"
    lines = []
    if dtype in SMALL:
        lines.append(f"%y{i} = stablehlo.convert %x{i} : (tensor<{ROWS}x{COLUMNS}xf32>) -> {wide}")
        given = f"%y{i}"
    region = f"""({{
    ^bb0(%a: {scalar}, %b: {scalar}):
      {body}
      stablehlo.return %s : {scalar}
    }})"""
    lines.append(f"%one{i} = stablehlo.constant dense<{one}> : {scalar}")
    if window:
        one_row = f"tensor<1x{COLUMNS}x{dtype}>"
        lines.append(f"""%w{i} = "stablehlo.reduce_window"({given}, %one{i}) {region}
    {{window_dimensions = array<i64: {ROWS}, 1>}} : ({wide}, {scalar}) -> {one_row}
    %r{i} = stablehlo.reshape %w{i} : ({one_row}) -> {row(dtype)}""")
    else:
        lines.append(f"""%r{i} = "stablehlo.reduce"({given}, %one{i}) {region}
    {{dimensions = array<i64: 0>}} : ({wide}, {scalar}) -> {row(dtype)}""")
    if dtype in SMALL:
        lines.append(f"%z{i} = stablehlo.convert %r{i} : ({row(dtype)}) -> {row('f32')}")
    return "\n    ".join(lines)


def row(dtype: str) -> str:
    return f"tensor<{COLUMNS}x{dtype}>"


def module(chosen: list[tuple[str, str]], window: bool) -> str:
    """Every case with its rows over all devices."""
    arguments, results, names, lines = [], [], [], []
    for i, (kind, dtype) in enumerate(chosen):
        outside = "f32" if dtype in SMALL else dtype
        sharding = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
        arguments.append(f"%x{i}: tensor<{ROWS}x{COLUMNS}x{outside}> {sharding}")
        results.append(row(outside))
        names.append(f"%{'z' if dtype in SMALL else 'r'}{i}")
        lines.append(reduction(i, kind, dtype, window))
    return f"""sdy.mesh @mesh = <["x"=8]>
func.func @main({", ".join(arguments)}) -> ({", ".join(results)}) {{
    {chr(10).join(lines)}
    return {", ".join(names)} : {", ".join(results)}
}}"""


def values(kind: str, dtype: str) -> np.ndarray:
    """Numbers that every type has, and of which the order of rounding does not matter."""
    random = np.random.default_rng(3)
    if dtype in SMALL or kind in ("multiply", OTHER):
        given = np.zeros((ROWS, COLUMNS)) if kind == OTHER or dtype in SMALL else np.ones((ROWS, COLUMNS))
        given[5] = 2 if kind == "multiply" else 1
        return given.astype(TYPES[dtype])
    return random.integers(0, 3, (ROWS, COLUMNS)).astype(TYPES[dtype])


def expected(kind: str, x: np.ndarray) -> np.ndarray:
    total = np.ones(COLUMNS, x.dtype)
    for part in x:
        total = (total + part + total * part if kind == OTHER else NUMPY[kind](total, part)).astype(x.dtype)
    return total


WINDOWED = ("i1", "i32", "bf16", "f32")
BOTH = pytest.mark.parametrize(("types", "window"), [(tuple(TYPES), False), (WINDOWED, True)], ids=["reduce", "window"])


@BOTH
def test_every_reducer_of_every_type_on_eight_devices(types: tuple[str, ...], window: bool) -> None:
    """Before: 7 of the starts for "add", "Unsupported reduction computation", and an abort for bfloat16."""
    chosen = list(cases(types))
    with jax.enable_x64(True):
        executable = compile_module(module(chosen, window), "cpu")
        given = [values(kind, dtype) for kind, dtype in chosen]
        got = [np.asarray(out) for out in executable(*given)]
    for (kind, dtype), x, out in zip(chosen, given, got, strict=True):
        np.testing.assert_array_equal(out, expected(kind, x), err_msg=f"{kind} of {dtype}")
    reduced = [c for c in executable.collectives() if c.kind == "all-reduce"]
    assert reduced  # what the catalogue has is reduced in parts
    assert combined(("add",), ("f32",)) and not combined((OTHER,), ("f32",)) and not combined(("xor",), ("i32",))


@pytest.mark.long
@BOTH
def test_every_reducer_of_every_type_compiles_for_gpus(types: tuple[str, ...], window: bool) -> None:
    """Before: the process ended."""
    executable = compile_module(module(list(cases(types)), window), "h100")
    assert "all-reduce" in executable.hlo_text()
