"""Draws the parts that every random operation is made of: shapes, types, operands, regions.

Owns the pool of values that operations read. Knows no operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from bench.differential.program import (
    EPSILON,
    LARGEST,
    Op,
    Program,
    Value,
    integer_bits,
    is_float,
    is_integer,
    type_text,
)

T = TypeVar("T")

# Most divide by 2 and 4; 3, 5 and 7 do not; 6 and 12 divide by 3 and 2; 0 and 1 are edges.
_SIZES = (8, 8, 8, 4, 4, 12, 12, 6, 16, 2, 3, 5, 7, 1)
_LARGEST_TENSOR = 4096
FLOATS = ("f32", "f32", "f32", "f32", "bf16", "f16", "f64", "f8E4M3FN", "f8E5M2")
COMPLEX = ("complex<f32>", "complex<f64>")
INTEGERS = ("i32", "i32", "i32", "i8", "i16", "i64", "ui8", "ui16", "ui32", "ui64")
ANY = (*FLOATS, *INTEGERS, "i1", "i1", *COMPLEX)
NUMBERS = (*FLOATS, *INTEGERS)
_START = {"f8E4M3FN": 2.0, "f8E5M2": 2.0}


class Unsuitable(Exception):
    """What was drawn cannot be made into this operation; another is drawn."""


class Gen:
    """A program, or the body of a region, that grows.

    Args:
      draw: of hypothesis.
      outer: whose names, arguments and values the body of a region shares.
    """

    def __init__(self, draw: Callable[..., Any], outer: Gen | None = None) -> None:
        self._draw = draw
        self.ops: list[Op] = []
        self.depth: int = outer.depth + 1 if outer else 0
        self.arguments: list[Value] = outer.arguments if outer else []
        self._count: list[int] = outer._count if outer else [0]
        self.pool: list[Value] = list(outer.pool) if outer else []
        self._outer = outer

    # --- drawing ---

    def one(self, of: Sequence[T]) -> T:
        return self._draw(st.sampled_from(of))

    def whole(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def maybe(self, percent: int = 50) -> bool:
        """True about so often; False is simpler."""
        return self.whole(0, 99) >= 100 - percent

    def some(self, of: Sequence[T], least: int = 0) -> list[T]:
        """A part of it, in order."""
        kept = [item for item in of if self.maybe()]
        if len(kept) < least:
            kept = list(of[:least])
        return kept

    def order(self, n: int) -> list[int]:
        return list(self._draw(st.permutations(range(n))))

    def size(self) -> int:
        return 0 if self.maybe(2) else self.one(_SIZES)

    def shape(self, least: int = 0, most: int = 4, room: int = _LARGEST_TENSOR) -> tuple[int, ...]:
        """Sizes whose product stays small."""
        found: list[int] = []
        for _ in range(self.whole(least, most)):
            size = self.size()
            if size * max(1, _product(found)) > room:
                size = 2 if 2 * max(1, _product(found)) <= room else 1
            found.append(size)
        return tuple(found)

    # --- values ---

    def fresh(self, prefix: str = "v") -> str:
        self._count[0] += 1
        return f"%{prefix}{self._count[0]}"

    def argument(self, shape: Sequence[int], dtype: str, bound: float | None = None) -> Value:
        """A new argument of @main; in a region too."""
        if bound is None:
            if is_float(dtype):
                bound = _START.get(dtype, 3.0)
            elif dtype == "i1":
                bound = 1.0
            else:
                top = 2.0 ** (integer_bits(dtype) - (0 if dtype.startswith("u") else 1)) - 1
                bound = min(top, self.one((7.0, 100.0, top)))
        value = Value(self.fresh("a"), tuple(shape), dtype, bound)
        self.arguments.append(value)
        here: Gen | None = self
        while here is not None:
            here.pool.append(value)
            here = here._outer
        return value

    def value(
        self,
        dtypes: Sequence[str] = ANY,
        shape: tuple[int, ...] | None = None,
        where: Callable[[Value], bool] = lambda v: True,
        least: int = 0,
        most: int = 4,
        reuse: int = 75,
    ) -> Value:
        """An operand: one that is there, or a new argument."""
        kinds = set(dtypes)
        if self.maybe(reuse):
            found = [
                v
                for v in self.pool
                if v.dtype in kinds
                and (shape is None or v.shape == shape)
                and least <= len(v.shape) <= most
                and _good(v)
                and where(v)
            ]
            if found:
                # The latest ones first: programs become deep.
                return found[-1 - min(self.whole(0, 7), len(found) - 1)]
        made = self.argument(shape if shape is not None else self.shape(least, most), self.one(tuple(dtypes)))
        if not where(made):
            raise Unsuitable
        return made

    def exact(self, dtypes: Sequence[str] = ANY, **options: Any) -> Value:
        """An operand that every run gives alike."""
        return self.value(dtypes, where=lambda v: v.error == 0, **options)

    def like(self, v: Value, **options: Any) -> Value:
        """An operand of the same type."""
        return self.value((v.dtype,), shape=v.shape, **options)

    def constant(self, shape: Sequence[int], dtype: str, number: float | int | str) -> Value:
        """A splat."""
        text = number if isinstance(number, str) else _literal(number, dtype)
        bound = abs(float(number)) if not isinstance(number, str) else float("inf")
        kind = type_text(shape, dtype)
        attribute = f"{{value = dense<{text}> : {kind}}}"
        return self.emit("stablehlo.constant", (), [(tuple(shape), dtype, bound, 0.0)], attribute)[0]

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[tuple[tuple[int, ...], str, float, float]],
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> list[Value]:
        """Append an operation; each result is shape, dtype, bound and error."""
        base = self.fresh()
        many = len(results) > 1
        made = [Value(f"{base}#{i}" if many else base, *result) for i, result in enumerate(results)]
        for v in made:
            if is_float(v.dtype) and v.bound > LARGEST[v.dtype] and v.bound != float("inf"):
                raise Unsuitable
        left = f"{base}:{len(results)} = " if many else f"{base} = " if results else ""
        bodies = f" ({', '.join(regions)})" if regions else ""
        types = ", ".join(v.type for v in operands)
        out = ", ".join(v.type for v in made)
        out = f"({out})" if len(made) != 1 else out
        names = ", ".join(v.name for v in operands)
        given = f" {attributes}" if attributes else ""
        self.ops.append(Op(name, tuple(made), f'{left}"{name}"({names}){bodies}{given} : ({types}) -> {out}'))
        self.pool += made
        return made

    def region(self, arguments: Sequence[Value], build: Callable[[Gen], Sequence[Value]]) -> tuple[str, list[Value]]:
        """The text of a region with one block, and what it returns."""
        inner = Gen(self._draw, self)
        inner.pool += list(arguments)
        returned = list(build(inner))
        head = f"^bb0({', '.join(f'{a.name}: {a.type}' for a in arguments)}):\n" if arguments else "\n"
        body = "\n".join(op.text for op in inner.ops)
        names, types = ", ".join(v.name for v in returned), ", ".join(v.type for v in returned)
        end = f'"stablehlo.return"({names}) : ({types}) -> ()'
        return "{\n" + head + body + "\n" + end + "\n}", returned

    def program(self, seed: int) -> Program:
        """All that was drawn; what nobody reads is returned."""
        read = {name for op in self.ops for name in op.used() - {r.name for r in op.results}}
        outputs = [r for op in self.ops for r in op.results if r.name not in read and op.name != "stablehlo.constant"]
        outputs += [r for op in self.ops[::3] for r in op.results[:1] if r.name in read]
        return Program(tuple(self.arguments), tuple(self.ops), (), seed).only(outputs)


def _good(v: Value) -> bool:
    """Whether what is computed from it can still tell right from wrong."""
    return v.bound != float("inf") and v.error <= 0.03 * max(v.bound, 1e-3)


def _product(sizes: Sequence[int]) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found


def _literal(number: float | int, dtype: str) -> str:
    if dtype == "i1":
        return "true" if number else "false"
    if is_integer(dtype):
        return str(int(number))
    if dtype.startswith("complex"):
        return f"({float(number):.6e}, 0.000000e+00)"
    return f"{float(number):.6e}"


def rounded(dtype: str, bound: float, error: float, whole: bool, roundings: float = 1.0) -> tuple[str, float, float]:
    """Type, bound and error of a result: exact where it is whole, nothing was inexact, and the type holds it.

    Args:
      error: what the operands' errors come to.
      whole: whether the result of whole numbers is whole.
      roundings: of the operation itself, in units of the bound.
    """
    if not is_float(dtype):
        return dtype, bound, 0.0
    if error == 0 and whole and bound <= 2.0 / EPSILON[dtype]:
        return dtype, bound, 0.0
    return dtype, bound, error + roundings * EPSILON[dtype] * bound


def array(values: Sequence[int], kind: str = "i64") -> str:
    """An attribute of whole numbers."""
    return f"array<{kind}: {', '.join(map(str, values))}>" if values else f"array<{kind}>"
