"""Random operations that move elements: shapes, slices, and where they are told."""

from __future__ import annotations

from math import prod

from bench.differential.gen import ANY, NUMBERS, Gen, Unsuitable, array
from bench.differential.program import Value, integer_bits, type_text


def _same(v: Value, shape: tuple[int, ...]) -> tuple[tuple[int, ...], str, float, float]:
    return shape, v.dtype, v.bound, v.error


def _room(shape: tuple[int, ...]) -> None:
    if prod(shape) > 16384:
        raise Unsuitable


def broadcast_in_dim(g: Gen) -> None:
    """Dims anywhere, in order or not, those of size 1 widened."""
    v = g.value(most=3)
    shape = list(g.shape(most=4 - len(v.shape), room=256))
    places: list[int] = []
    for size in v.shape:
        at = g.whole(places[-1] + 1 if places else 0, len(shape))
        shape.insert(at, size if size != 1 or g.maybe() else g.size())
        places = [p + (p >= at) for p in places] + [at]
    _room(tuple(shape))
    if len(places) == 2 and g.maybe(30):
        # A broadcast that transposes too.
        order = [places[1], places[0]]
        a, b = order
        shape[a], shape[b] = shape[b], shape[a]
        places = order
    g.emit("stablehlo.broadcast_in_dim", [v], [_same(v, tuple(shape))], f"{{broadcast_dimensions = {array(places)}}}")


def reshape(g: Gen) -> None:
    """Dims merged and split."""
    v = g.value()
    flat = list(v.shape)
    for _ in range(g.whole(1, 3)):
        if len(flat) > 1 and g.maybe():
            at = g.whole(0, len(flat) - 2)
            flat[at : at + 2] = [flat[at] * flat[at + 1]]
        elif flat and len(flat) < 5:
            at = g.whole(0, len(flat) - 1)
            divisors = [n for n in (1, 2, 3, 4, 8) if flat[at] % n == 0]
            n = g.one(divisors)
            flat[at : at + 1] = [flat[at] // n, n] if g.maybe() else [n, flat[at] // n]
        elif g.maybe() and len(flat) < 5:
            flat.insert(g.whole(0, len(flat)), 1)
    g.emit("stablehlo.reshape", [v], [_same(v, tuple(flat))])


def transpose(g: Gen) -> None:
    v = g.value(least=2)
    order = g.order(len(v.shape))
    shape = tuple(v.shape[i] for i in order)
    g.emit("stablehlo.transpose", [v], [_same(v, shape)], f"{{permutation = {array(order)}}}")


def reverse(g: Gen) -> None:
    v = g.value(least=1)
    g.emit("stablehlo.reverse", [v], [_same(v, v.shape)], f"{{dimensions = {array(g.some(range(len(v.shape)), 1))}}}")


def slice_(g: Gen) -> None:
    v = g.value(least=1)
    starts, limits, steps, shape = [], [], [], []
    for n in v.shape:
        whole = g.maybe(40)
        start = 0 if whole else g.whole(0, n)
        limit = n if whole else g.whole(start, n)
        step = 1 if whole else g.one((1, 1, 2, 3))
        starts.append(start)
        limits.append(limit)
        steps.append(step)
        shape.append(-(-(limit - start) // step))
    text = f"{{start_indices = {array(starts)}, limit_indices = {array(limits)}, strides = {array(steps)}}}"
    g.emit("stablehlo.slice", [v], [_same(v, tuple(shape))], text)


def pad(g: Gen) -> None:
    """Also negative, and between elements."""
    v = g.value(least=1)
    fill = g.value((v.dtype,), shape=())
    low, high, between, shape = [], [], [], []
    for n in v.shape:
        a, b = (0, 0) if g.maybe(30) else (g.whole(-1, 3), g.whole(-1, 3))
        inside = g.one((0, 0, 0, 1, 2))
        size = n + max(0, n - 1) * inside + a + b
        if size < 0:
            raise Unsuitable
        low.append(a)
        high.append(b)
        between.append(inside)
        shape.append(size)
    _room(tuple(shape))
    text = (
        f"{{edge_padding_low = {array(low)}, edge_padding_high = {array(high)}, interior_padding = {array(between)}}}"
    )
    result = (tuple(shape), v.dtype, max(v.bound, fill.bound), max(v.error, fill.error))
    g.emit("stablehlo.pad", [v, fill], [result], text)


def concatenate(g: Gen) -> None:
    first = g.value(least=1)
    dim = g.whole(0, len(first.shape) - 1)
    operands = [first]
    for _ in range(g.whole(1, 3)):
        shape = list(first.shape)
        if g.maybe():
            shape[dim] = g.size()
        operands.append(g.value((first.dtype,), shape=tuple(shape)))
    shape = list(first.shape)
    shape[dim] = sum(v.shape[dim] for v in operands)
    _room(tuple(shape))
    result = (tuple(shape), first.dtype, max(v.bound for v in operands), max(v.error for v in operands))
    g.emit("stablehlo.concatenate", operands, [result], f"{{dimension = {dim} : i64}}")


def iota(g: Gen) -> None:
    shape = g.shape(least=1)
    dtype = g.one(("i32", "f32", "i64", "ui8", "bf16"))
    dim = g.whole(0, len(shape) - 1)
    g.emit("stablehlo.iota", [], [(shape, dtype, float(max(shape[dim], 1)), 0.0)], f"{{iota_dimension = {dim} : i64}}")


def constant(g: Gen) -> None:
    """Dense, with every element another."""
    shape = g.shape(least=1, most=2, room=64)
    dtype = g.one(("i32", "f32", "i64"))
    numbers = [(7 * i) % 11 for i in range(prod(shape))]

    def nested(sizes: tuple[int, ...], flat: list[int]) -> str:
        if not sizes:
            return str(flat[0]) if dtype != "f32" else f"{flat[0]}.0"
        step = len(flat) // sizes[0]
        return "[" + ", ".join(nested(sizes[1:], flat[i * step : (i + 1) * step]) for i in range(sizes[0])) + "]"

    if not prod(shape):
        raise Unsuitable
    text = f"{{value = dense<{nested(shape, numbers)}> : {type_text(shape, dtype)}}}"
    g.emit("stablehlo.constant", [], [(shape, dtype, 10.0, 0.0)], text)


def _indices(g: Gen, count: int) -> list[Value]:
    dtype = g.one(("i32", "i32", "i64", "ui32"))
    return [g.value((dtype,), shape=()) for _ in range(count)]


def dynamic_slice(g: Gen) -> None:
    v = g.value(least=1)
    sizes = [n if g.maybe() else g.whole(0 if n == 0 else 1, n) for n in v.shape]
    starts = _indices(g, len(sizes))
    g.emit("stablehlo.dynamic_slice", [v, *starts], [_same(v, tuple(sizes))], f"{{slice_sizes = {array(sizes)}}}")


def dynamic_update_slice(g: Gen) -> None:
    v = g.value(least=1)
    sizes = [n if g.maybe() else g.whole(0 if n == 0 else 1, n) for n in v.shape]
    new = g.value((v.dtype,), shape=tuple(sizes))
    result = (v.shape, v.dtype, max(v.bound, new.bound), max(v.error, new.error))
    g.emit("stablehlo.dynamic_update_slice", [v, new, *_indices(g, len(sizes))], [result])


def sort(g: Gen) -> None:
    """One operand or several, ascending or descending, stable."""
    v = g.exact((*NUMBERS, "i1"), least=1)
    others = [g.value(ANY, shape=v.shape) for _ in range(g.whole(0, 2))]
    dim = g.whole(0, len(v.shape) - 1)
    operands = [v, *others]
    arguments = ", ".join(f"%s{2 * i + j}: tensor<{o.dtype}>" for i, o in enumerate(operands) for j in range(2))
    way = g.one(("LT", "GT"))
    kind = f"tensor<{v.dtype}>"
    body = (
        f'{{\n^bb0({arguments}):\n  %sc = "stablehlo.compare"(%s0, %s1) '
        f"{{comparison_direction = #stablehlo<comparison_direction {way}>}} : ({kind}, {kind}) -> tensor<i1>\n"
        f'  "stablehlo.return"(%sc) : (tensor<i1>) -> ()\n}}'
    )
    text = f"{{dimension = {dim} : i64, is_stable = true}}"
    g.emit("stablehlo.sort", operands, [_same(o, o.shape) for o in operands], text, [body])


def rng_bits(g: Gen) -> None:
    """Random bits of a known state."""
    shape = g.shape(least=1)
    dtype = g.one(("ui32", "ui64", "ui8", "ui16"))
    algorithm, words = g.one((("THREE_FRY", 2), ("PHILOX", 2), ("PHILOX", 3), ("DEFAULT", 2)))
    state = g.argument((words,), "ui64")
    results = [((words,), "ui64", 2.0**64, 0.0), (shape, dtype, 2.0 ** integer_bits(dtype), 0.0)]
    text = f"{{rng_algorithm = #stablehlo<rng_algorithm {algorithm}>}}"
    g.emit("stablehlo.rng_bit_generator", [state], results, text)


ALL = (broadcast_in_dim, broadcast_in_dim, reshape, reshape, transpose, reverse, slice_, pad, concatenate, iota,
       constant, dynamic_slice, dynamic_update_slice, sort, rng_bits)  # fmt: skip
