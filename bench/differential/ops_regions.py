"""Random loops and branches, whose regions hold random operations and read what is outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.differential.gen import Gen, Unsuitable
from bench.differential.program import Value, is_float

_DEEPEST = 2


def conditional(g: Gen, grow: Callable[[Gen, int], None]) -> None:
    """if and case: branches return values of the same types, of their own and from outside."""
    if g.depth >= _DEEPEST:
        raise Unsuitable
    wanted = [g.value(reuse=90) for _ in range(g.whole(1, 2))]
    found: list[list[Value]] = []

    def branch(inner: Gen) -> Sequence[Value]:
        grow(inner, inner.whole(0, 3))
        out = [inner.like(w) for w in wanted]
        found.append(out)
        return out

    if g.maybe():
        name, switch, count = "stablehlo.if", g.value(("i1",), shape=()), 2
    else:
        name, switch, count = "stablehlo.case", g.value(("i32",), shape=()), g.whole(1, 3)
    regions = [g.region((), branch)[0] for _ in range(count)]
    results = [
        (w.shape, w.dtype, max(b[i].bound for b in found), max(b[i].error for b in found)) for i, w in enumerate(wanted)
    ]
    g.emit(name, [switch], results, "", regions)


def loop(g: Gen, grow: Callable[[Gen, int], None]) -> None:
    """while: a counter, whole numbers that go through anything, and sums of what does not change."""
    if g.depth >= _DEEPEST:
        raise Unsuitable
    trips = g.one((0, 1, 2, 3))
    carried = [g.value(("i32", "i8", "ui32", "i1", "f32", "bf16"), reuse=80) for _ in range(g.whole(1, 2))]
    limit, one, zero = g.constant((), "i32", trips), g.constant((), "i32", 1), g.constant((), "i32", 0)
    operands = [zero, *carried]
    added = [g.like(c) if is_float(c.dtype) else None for c in carried]
    u = g.fresh("w")

    def inside(v: Value, which: str, i: int) -> Value:
        whole = 2.0**63 if v.dtype not in ("i1",) else 1.0
        bound = v.bound if is_float(v.dtype) else whole
        return Value(f"{u}{which}{i}", v.shape, v.dtype, bound, v.error)

    tested = [inside(v, "t", i) for i, v in enumerate(operands)]
    bodied = [inside(v, "b", i) for i, v in enumerate(operands)]

    def test(inner: Gen) -> Sequence[Value]:
        text = "{comparison_direction = #stablehlo<comparison_direction LT>}"
        return inner.emit("stablehlo.compare", [tested[0], limit], [((), "i1", 1.0, 0.0)], text)

    def body(inner: Gen) -> Sequence[Value]:
        # A float that is carried has another bound in every turn: only sums may read it.
        inner.pool = [v for v in inner.pool if not (v in bodied and is_float(v.dtype))]
        grow(inner, inner.whole(0, 3))
        next_ = inner.emit("stablehlo.add", [bodied[0], one], [((), "i32", 8.0, 0.0)])
        out = []
        for c, more in zip(bodied[1:], added, strict=True):
            if more is not None:
                out += inner.emit("stablehlo.add", [c, more], [(c.shape, c.dtype, c.bound, c.error)])
            else:
                out.append(inner.value((c.dtype,), shape=c.shape, reuse=95))
        return [*next_, *out]

    regions = [g.region(tested, test)[0], g.region(bodied, body)[0]]
    results: list[tuple[tuple[int, ...], str, float, float]] = [((), "i32", 8.0, 0.0)]
    for c, more in zip(carried, added, strict=True):
        bound, error = 2.0**64 if c.dtype != "i1" else 1.0, 0.0
        if more is not None:
            from bench.differential.gen import rounded

            _, bound, error = rounded(c.dtype, c.bound + trips * more.bound, c.error + trips * more.error, True, 3)
        results.append((c.shape, c.dtype, bound, error))
    g.emit("stablehlo.while", operands, results, "", regions)


ALL = (conditional, loop)
