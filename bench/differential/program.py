"""A random StableHLO program as data: arguments, operations and what is known of each value's size and error.

Owns the text of a program, its arguments' data, cutting it down and joining several. Draws nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from rhino.program.element_types import numpy_name

_limits: Any = ml_dtypes.iinfo  # it has no types
_NAME = re.compile(r"%[A-Za-z_]\w*(?:#\d+)?")
_HEADER = "// differential: "

# What one rounding of a value may change of it, relative to its size; types that are not here do not round.
EPSILON = {
    "f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, "f8E4M3FN": 2.0**-3, "f8E5M2": 2.0**-2,
    "complex<f32>": 2.0**-22, "complex<f64>": 2.0**-51,
}  # fmt: skip
# The largest value an operation may give, well inside the type.
LARGEST = {
    "f64": 1e12, "f32": 1e9, "f16": 3e4, "bf16": 1e9, "f8E4M3FN": 400.0, "f8E5M2": 4e4,
    "complex<f32>": 1e9, "complex<f64>": 1e12,
}  # fmt: skip


def is_float(dtype: str) -> bool:
    """Whether values round: floating point and complex."""
    return dtype in EPSILON


def is_integer(dtype: str) -> bool:
    """Whole numbers, booleans not among them."""
    return dtype.lstrip("u").startswith("i") and dtype != "i1"


def integer_bits(dtype: str) -> int:
    return int(dtype.lstrip("ui"))


def numpy_type(dtype: str) -> np.dtype[Any]:
    """The dtype of an MLIR element type that this file knows."""
    name = numpy_name(dtype)
    assert name is not None, dtype
    return np.dtype(getattr(ml_dtypes, name, name))


def type_text(shape: Sequence[int], dtype: str) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a program.

    Attributes:
      bound: no element is larger in absolute value (each part of a complex one); infinite where nothing is known.
      error: how far an element may be from that of another correct run, absolute; 0 means that every run gives the
        same, and of floating point types that all elements are whole numbers the type holds exactly.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bound: float
    error: float = 0.0

    @property
    def type(self) -> str:
        return type_text(self.shape, self.dtype)

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation with all its regions: what it defines and its text, in which values stand by name."""

    name: str
    results: tuple[Value, ...]
    text: str

    @property
    def inner(self) -> tuple[str, ...]:
        """Names of all operations in it, itself first."""
        return tuple(re.findall(r'"([a-z_]+\.[\w.]+)"\(', self.text))

    def used(self) -> set[str]:
        """Names of the values that it or its regions read or define."""
        return set(_NAME.findall(self.text))


@dataclass(frozen=True, slots=True)
class Program:
    """Arguments, operations in order, and the values that @main returns."""

    arguments: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operations, with those in regions."""
        return tuple(name for op in self.ops for name in op.inner)

    def text(self) -> str:
        """The module, its arguments' ranges and its results' errors in a comment that `facts_of` understands."""
        facts = {
            "seed": self.seed,
            "arguments": [
                [a.dtype, a.bound if np.isfinite(a.bound) else None, a.error, a.name] for a in self.arguments
            ],
            "tolerances": [o.error for o in self.outputs],
        }
        taken = ", ".join(f"{a.name}: {a.type}" for a in self.arguments)
        given = ", ".join(o.type for o in self.outputs)
        names = ", ".join(o.name for o in self.outputs)
        lines = [f"{_HEADER}{json.dumps(facts)}", f"func.func @main({taken}) -> ({given}) {{"]
        lines += ["  " + line for op in self.ops for line in op.text.splitlines()]
        lines += [f"  return {names}{' : ' if names else ''}{given}", "}"]
        return "\n".join(lines) + "\n"

    def only(self, outputs: Iterable[Value]) -> Program:
        """The same with these outputs and what they need."""
        kept = tuple(outputs)
        needed = {o.name for o in kept}
        ops = []
        for op in reversed(self.ops):
            if any(r.name in needed for r in op.results):
                ops.append(op)
                needed |= op.used()
        arguments = tuple(a for a in self.arguments if a.name in needed)
        return replace(self, arguments=arguments, ops=tuple(reversed(ops)), outputs=kept)

    def without(self, index: int) -> Program | None:
        """The same with an operation's results as arguments in its place; None if a result is returned."""
        op = self.ops[index]
        if any(r in self.outputs for r in op.results):
            return None
        names = {r.name: r.name.replace("#", "_") for r in op.results}
        rest = tuple(replace(o, text=_renamed(o.text, names)) for o in (*self.ops[:index], *self.ops[index + 1 :]))
        new = tuple(replace(r, name=names[r.name]) for r in op.results)
        return replace(self, arguments=(*self.arguments, *new), ops=rest).only(self.outputs)


def _renamed(text: str, names: dict[str, str]) -> str:
    return _NAME.sub(lambda found: names.get(found[0], found[0]), text)


def joined(programs: Sequence[Program]) -> Program:
    """One program that is all of them, side by side."""
    arguments: list[Value] = []
    ops: list[Op] = []
    outputs: list[Value] = []
    for index, program in enumerate(programs):

        def name(text: str, index: int = index) -> str:
            return _NAME.sub(lambda found: f"%p{index}_{found[0][1:]}", text)

        def value(v: Value, name: Any = name) -> Value:
            return replace(v, name=name(v.name))

        arguments += map(value, program.arguments)
        ops += [Op(op.name, tuple(map(value, op.results)), name(op.text)) for op in program.ops]
        outputs += map(value, program.outputs)
    return Program(tuple(arguments), tuple(ops), tuple(outputs), programs[0].seed)


def facts_of(text: str) -> dict[str, Any] | None:
    """What the first line of `Program.text` says; None of a module that says nothing."""
    first = text.partition("\n")[0]
    return json.loads(first[len(_HEADER) :]) if first.startswith(_HEADER) else None


def data(shape: Sequence[int], dtype: str, bound: float | None, error: float, random: Any) -> np.ndarray[Any, Any]:
    """Elements for an argument: whole numbers up to `bound` where the value is exact, else any."""
    kind = numpy_type(dtype)
    if dtype == "i1":
        return np.asarray(random.integers(0, 2, shape), bool)
    if is_integer(dtype):
        info: Any = _limits(kind)
        top = int(info.max) if bound is None else int(min(bound, info.max))
        low = 0 if dtype.startswith("u") else max(-top, int(info.min))
        wide = np.uint64 if dtype.startswith("u") else np.int64
        return np.asarray(random.integers(low, top, shape, dtype=wide, endpoint=True)).astype(kind)
    size = 4.0 if bound is None else bound
    if kind.kind == "c":
        parts = [_floats(shape, size, error, random) for _ in range(2)]
        return np.asarray(parts[0] + 1j * parts[1]).astype(kind)
    return np.asarray(_floats(shape, size, error, random)).astype(kind)


def _floats(shape: Sequence[int], top: float, error: float, random: Any) -> np.ndarray[Any, Any]:
    if error == 0:
        return np.asarray(random.integers(-int(top), int(top), shape, endpoint=True), np.float64)
    return np.asarray(random.uniform(-top, top, shape))
