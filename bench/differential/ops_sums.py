"""Random operations that combine elements: reductions, windows, products, convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from bench.differential.gen import COMPLEX, FLOATS, INTEGERS, NUMBERS, Gen, Unsuitable, array, rounded
from bench.differential.ops_elementwise import wraps
from bench.differential.program import EPSILON, Value, integer_bits, is_float, is_integer

_NEUTRAL = {"add": 0, "multiply": 1, "or": 0, "xor": 0}


@dataclass(frozen=True, slots=True)
class Reducer:
    """What combines two elements of a type: the text of its region, and what n of them come to."""

    name: str
    dtype: str

    def region(self, unique: str) -> str:
        kind = f"tensor<{self.dtype}>"
        a, b, c = f"%l{unique}", f"%r{unique}", f"%c{unique}"
        lines = [f'{c} = "stablehlo.{self.name}"({a}, {b}) : ({kind}, {kind}) -> {kind}']
        if self.name == "greater":  # a maximum that nobody calls so
            lines = [
                f'{c}p = "stablehlo.compare"({a}, {b}) {{comparison_direction = #stablehlo<comparison_direction GT>}}'
                f" : ({kind}, {kind}) -> tensor<i1>",
                f'{c} = "stablehlo.select"({c}p, {a}, {b}) : (tensor<i1>, {kind}, {kind}) -> {kind}',
            ]
        elif self.name == "both":  # a + b + ab, which starts at 0
            lines = [
                f'{c}s = "stablehlo.add"({a}, {b}) : ({kind}, {kind}) -> {kind}',
                f'{c}t = "stablehlo.multiply"({a}, {b}) : ({kind}, {kind}) -> {kind}',
                f'{c} = "stablehlo.add"({c}s, {c}t) : ({kind}, {kind}) -> {kind}',
            ]
        body = "\n  ".join(lines)
        return f'{{\n^bb0({a}: {kind}, {b}: {kind}):\n  {body}\n  "stablehlo.return"({c}) : ({kind}) -> ()\n}}'

    def result(self, v: Value, start: Value, n: int) -> tuple[str, float, float]:
        """Type, bound and error of n elements of `v` after `start`. Raises Unsuitable where these say nothing."""
        if self.name in ("maximum", "minimum", "greater"):
            return self.dtype, max(v.bound, start.bound), max(v.error, start.error)
        if not is_float(self.dtype):
            return self.dtype, wraps(self.dtype, 2.0**64), 0.0
        if self.name == "multiply":
            top = max(v.bound, 1.0) ** n * max(1.0, start.bound) if n < 64 else float("inf")
            if v.error or start.error or self.dtype.startswith("complex") or top > 2 / EPSILON[self.dtype]:
                raise Unsuitable
            return self.dtype, top, 0.0
        bound = n * v.bound + start.bound
        exact = rounded(self.dtype, bound, n * v.error + start.error, True, max(1, n))
        if exact[2] and n * EPSILON[self.dtype] > 0.01:
            raise Unsuitable
        return exact


def reducer(g: Gen, dtype: str, padded: bool = False) -> tuple[Reducer, Value]:
    """One for a type and what it starts with: the neutral element mostly, always where windows are padded.

    How often another start counts there, XLA and StableHLO do not agree on, nor XLA with itself in long windows.
    """
    names: tuple[str, ...]
    if dtype == "i1":
        names = ("or", "and", "xor", "maximum", "minimum", "add", "multiply")
    elif is_integer(dtype):
        names = ("add", "maximum", "minimum", "multiply", "or", "and", "xor", "greater", "both")
    elif dtype.startswith("complex"):
        names = ("add", "multiply")
    else:
        names = ("add", "add", "maximum", "minimum", "multiply", "greater")
    name = g.one(names)
    if not padded and g.maybe(20):
        return Reducer(name, dtype), g.exact((dtype,), shape=())
    if name == "both":
        return Reducer(name, dtype), g.constant((), dtype, 0)
    return Reducer(name, dtype), g.constant((), dtype, neutral(name, dtype))


def neutral(name: str, dtype: str) -> int | str:
    """What changes nothing under a reducer, as a number or MLIR's text for it."""
    if name in _NEUTRAL:
        return _NEUTRAL[name]
    high = name in ("minimum", "and")
    if dtype == "i1":
        return 1 if high else 0
    if is_integer(dtype):
        if name == "and":
            return "-1" if not dtype.startswith("u") else str(2 ** integer_bits(dtype) - 1)
        if dtype.startswith("u"):
            return str(2 ** integer_bits(dtype) - 1) if high else "0"
        half = 2 ** (integer_bits(dtype) - 1)
        return str(half - 1) if high else str(-half)
    if dtype == "f8E4M3FN":
        return 448 if high else -448
    return ("" if high else "-") + {"f64": "0x7FF0000000000000", "f32": "0x7F800000", "f16": "0x7C00", "bf16": "0x7F80",
                                    "f8E5M2": "0x7C"}[dtype] if high else _LOWEST[dtype]  # fmt: skip


_LOWEST = {"f64": "0xFFF0000000000000", "f32": "0xFF800000", "f16": "0xFC00", "bf16": "0xFF80", "f8E5M2": "0xFC"}


def _start(v: Value) -> Value:
    """The start as one of its bound; infinities bound nothing."""
    return Value(v.name, v.shape, v.dtype, v.bound if v.bound != float("inf") else 0.0, v.error)


def reduce_(g: Gen) -> None:
    v = g.value((*NUMBERS, *COMPLEX, "i1"), least=1)
    dims = g.some(range(len(v.shape)), 1)
    how, start = reducer(g, v.dtype)
    n = prod(v.shape[d] for d in dims)
    shape = tuple(s for d, s in enumerate(v.shape) if d not in dims)
    dtype, bound, error = how.result(v, _start(start), n)
    if n == 0 and start.bound == float("inf"):
        bound = float("inf")
    region = how.region(g.fresh()[1:])
    g.emit("stablehlo.reduce", [v, start], [(shape, dtype, bound, error)], f"{{dimensions = {array(dims)}}}", [region])


def reduce_pairs(g: Gen) -> None:
    """The place of the largest element, and a sum with a maximum."""
    v = g.exact(("f32", "i32", "bf16"), least=1)
    dims = g.some(range(len(v.shape)), 1)
    shape = tuple(s for d, s in enumerate(v.shape) if d not in dims)
    n = prod(v.shape[d] for d in dims)
    kind, u = f"tensor<{v.dtype}>", g.fresh()[1:]
    if n == 0:
        raise Unsuitable
    if g.maybe():
        at = [g.emit("stablehlo.iota", [], [(v.shape, "i32", float(max(v.shape)), 0.0)],
                     f"{{iota_dimension = {dims[0]} : i64}}")[0]]  # fmt: skip
        starts = [g.constant((), v.dtype, neutral("maximum", v.dtype)), g.constant((), "i32", 0)]
        body = f"""{{
^bb0(%a{u}: {kind}, %b{u}: tensor<i32>, %c{u}: {kind}, %d{u}: tensor<i32>):
  %e{u} = "stablehlo.compare"(%a{u}, %c{u}) {{comparison_direction = #stablehlo<comparison_direction GT>}} : ({kind}, {kind}) -> tensor<i1>
  %f{u} = "stablehlo.compare"(%a{u}, %c{u}) {{comparison_direction = #stablehlo<comparison_direction EQ>}} : ({kind}, {kind}) -> tensor<i1>
  %g{u} = "stablehlo.compare"(%b{u}, %d{u}) {{comparison_direction = #stablehlo<comparison_direction LT>}} : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %h{u} = "stablehlo.and"(%f{u}, %g{u}) : (tensor<i1>, tensor<i1>) -> tensor<i1>
  %i{u} = "stablehlo.or"(%e{u}, %h{u}) : (tensor<i1>, tensor<i1>) -> tensor<i1>
  %j{u} = "stablehlo.select"(%e{u}, %a{u}, %c{u}) : (tensor<i1>, {kind}, {kind}) -> {kind}
  %k{u} = "stablehlo.select"(%i{u}, %b{u}, %d{u}) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
  "stablehlo.return"(%j{u}, %k{u}) : ({kind}, tensor<i32>) -> ()
}}"""  # noqa: E501
        results = [(shape, v.dtype, v.bound, 0.0), (shape, "i32", float(max(v.shape)), 0.0)]
        operands = [v, *at, *starts]
    else:
        w = g.exact(("i32",), shape=v.shape)
        starts = [g.constant((), v.dtype, neutral("maximum", v.dtype)), g.constant((), "i32", 0)]
        body = f"""{{
^bb0(%a{u}: {kind}, %b{u}: tensor<i32>, %c{u}: {kind}, %d{u}: tensor<i32>):
  %e{u} = "stablehlo.maximum"(%a{u}, %c{u}) : ({kind}, {kind}) -> {kind}
  %f{u} = "stablehlo.add"(%b{u}, %d{u}) : (tensor<i32>, tensor<i32>) -> tensor<i32>
  "stablehlo.return"(%e{u}, %f{u}) : ({kind}, tensor<i32>) -> ()
}}"""
        results = [(shape, v.dtype, v.bound, 0.0), (shape, "i32", 2.0**31, 0.0)]
        operands = [v, w, *starts]
    g.emit("stablehlo.reduce", operands, results, f"{{dimensions = {array(dims)}}}", [body])


def _windows(g: Gen, shape: tuple[int, ...], dilated: bool) -> tuple[str, tuple[int, ...], int]:
    """Attributes, the result's shape, and elements in a window."""
    sizes, steps, low_high, inner, outer, result = [], [], [], [], [], []
    for n in shape:
        if g.maybe(40) or n == 0:
            size, step, low, high, spread, base = 1, 1, 0, 0, 1, 1
        else:
            size, step = g.whole(1, 4), g.whole(1, 3)
            low, high = g.whole(0, size - 1), g.whole(0, size - 1)
            spread, base = (g.one((1, 1, 2)), g.one((1, 1, 2))) if dilated else (1, 1)
        wide = (n - 1) * base + 1 + low + high if n else low + high
        reach = (size - 1) * spread + 1
        if reach > wide and n:
            raise Unsuitable
        sizes.append(size)
        steps.append(step)
        low_high.append(f"[{low}, {high}]")
        inner.append(spread)
        outer.append(base)
        result.append((wide - reach) // step + 1 if wide >= reach else 0)
    text = f"window_dimensions = {array(sizes)}, window_strides = {array(steps)}"
    text += f", padding = dense<[{', '.join(low_high)}]> : tensor<{len(shape)}x2xi64>"
    if dilated:
        text += f", base_dilations = {array(outer)}, window_dilations = {array(inner)}"
    return "{" + text + "}", tuple(result), prod(sizes)


def reduce_window(g: Gen) -> None:
    v = g.value((*NUMBERS, "i1"), least=1)
    text, shape, n = _windows(g, v.shape, dilated=True)
    how, start = reducer(g, v.dtype, padded=True)
    dtype, bound, error = how.result(v, _start(start), n)
    if start.bound == float("inf"):
        bound = float("inf")  # a window may lie in the padding
    region = how.region(g.fresh()[1:])
    g.emit("stablehlo.reduce_window", [v, start], [(shape, dtype, bound, error)], text, [region])


def cumulative(g: Gen) -> None:
    """A cumulative sum or maximum, as a window as long as the dimension."""
    v = g.value((*NUMBERS,), least=1)
    how, start = reducer(g, v.dtype, padded=True)
    dim = g.whole(0, len(v.shape) - 1)
    n = v.shape[dim]
    if n == 0 or start.bound == float("inf") or how.name in ("maximum", "minimum", "greater"):
        raise Unsuitable
    low, high = (n - 1, 0) if g.maybe() else (0, n - 1)
    sizes = [n if d == dim else 1 for d in range(len(v.shape))]
    edges = ", ".join(f"[{low}, {high}]" if d == dim else "[0, 0]" for d in range(len(v.shape)))
    text = f"{{window_dimensions = {array(sizes)}, padding = dense<[{edges}]> : tensor<{len(v.shape)}x2xi64>}}"
    region = how.region(g.fresh()[1:])
    g.emit("stablehlo.reduce_window", [v, start], [(v.shape, *how.result(v, _start(start), n))], text, [region])


def select_and_scatter(g: Gen) -> None:
    """The gradient of a maximum over windows."""
    v = g.exact(("f32", "i32", "f64", "bf16"), least=1)
    text, shape, n = _windows(g, v.shape, dilated=False)
    source = g.value((v.dtype,), shape=shape)
    start = g.constant((), v.dtype, 0)
    kind, u = f"tensor<{v.dtype}>", g.fresh()[1:]
    select = (
        f'{{\n^bb0(%a{u}: {kind}, %b{u}: {kind}):\n  %c{u} = "stablehlo.compare"(%a{u}, %b{u}) '
        f"{{comparison_direction = #stablehlo<comparison_direction GE>}} : ({kind}, {kind}) -> tensor<i1>\n"
        f'  "stablehlo.return"(%c{u}) : (tensor<i1>) -> ()\n}}'
    )
    how = Reducer("add", v.dtype)
    result = how.result(source, start, n)
    region = how.region(g.fresh()[1:])
    g.emit("stablehlo.select_and_scatter", [v, source, start], [(v.shape, *result)], text, [select, region])


def product(a: Value, b: Value, k: int, dtype: str) -> tuple[str, float, float]:
    """Type, bound and error of a sum of k products. Raises Unsuitable where the error says nothing."""
    if not is_float(dtype):
        return dtype, wraps(dtype, 2.0**64), 0.0
    twice = 2 if dtype.startswith("complex") else 1
    bound = twice * max(k, 1) * a.bound * b.bound
    error = twice * k * (a.bound * b.error + b.bound * a.error)
    if a.dtype != dtype:
        error = max(error, 0.0)
    found = rounded(dtype, bound, error, True, max(k, 1))
    if found[2] and max(k, 1) * EPSILON[dtype] > 0.01:
        raise Unsuitable
    return found


def dot_general(g: Gen) -> None:
    """Any batching, contracted and free dims in any places."""
    a = g.value((*FLOATS[:7], *INTEGERS, *COMPLEX), most=4)
    order = g.order(len(a.shape))
    batching = order[: g.whole(0, min(2, len(order)))]
    contracted = order[len(batching) :][: g.whole(0, 2)]
    free = [g.size() for _ in range(g.whole(0, 2))]
    labels = [("b", d) for d in batching] + [("c", d) for d in contracted] + [("f", i) for i in range(len(free))]
    places = g.order(len(labels))
    labels = [labels[i] for i in places]
    shape = tuple(free[d] if kind == "f" else a.shape[d] for kind, d in labels)
    rest = tuple(a.shape[d] for d in range(len(a.shape)) if d not in batching and d not in contracted)
    out = (*(a.shape[d] for d in batching), *rest, *(shape[i] for i, (kind, _) in enumerate(labels) if kind == "f"))
    if prod(shape) > 8192 or prod(out) > 8192:
        raise Unsuitable
    b = g.value((a.dtype,), shape=shape)
    where = {label: i for i, label in enumerate(labels)}
    numbers = (
        f"lhs_batching_dimensions = {batching}, rhs_batching_dimensions = {[where['b', d] for d in batching]}, "
        f"lhs_contracting_dimensions = {contracted}, rhs_contracting_dimensions = {[where['c', d] for d in contracted]}"
    )
    dtype = a.dtype
    if a.dtype in ("bf16", "f16") and g.maybe(30):
        dtype = "f32"
    if a.dtype == "i8" and g.maybe(40):
        dtype = "i32"
    result = product(a, b, prod(a.shape[d] for d in contracted), dtype)
    g.emit("stablehlo.dot_general", [a, b], [(out, *result)], f"{{dot_dimension_numbers = #stablehlo.dot<{numbers}>}}")


def convolution(g: Gen) -> None:
    """One or two spatial dims; strides, padding, dilation, groups, dims anywhere."""
    dtype = g.one(("f32", "f32", "f32", "bf16", "f64", "f16"))
    spatial = g.whole(1, 2)
    groups, batch_groups = g.one(((1, 1), (1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (1, 4)))
    batch = batch_groups * g.one((1, 2, 4))
    inside = g.one((1, 2, 3, 4, 8))
    outside = groups * batch_groups * g.one((1, 2, 3, 4))
    image, window, steps, edges, widen, spread, result = [], [], [], [], [], [], []
    for _ in range(spatial):
        n, k = g.one((4, 5, 6, 8, 12)), g.one((1, 2, 3, 3, 5))
        step, base, gap = g.one((1, 1, 2, 3)), g.one((1, 1, 1, 2)), g.one((1, 1, 1, 2))
        low, high = g.whole(0, 3), g.whole(0, 3)
        wide, reach = (n - 1) * base + 1 + low + high, (k - 1) * gap + 1
        if reach > wide:
            raise Unsuitable
        image.append(n)
        window.append(k)
        steps.append(step)
        edges.append(f"[{low}, {high}]")
        widen.append(base)
        spread.append(gap)
        result.append((wide - reach) // step + 1)

    def laid_out(first: str, second: str, sizes: dict[str, int]) -> tuple[str, tuple[int, ...]]:
        labels = [first, second, *map(str, range(spatial))]
        labels = [labels[i] for i in g.order(len(labels))] if g.maybe() else [first, *labels[2:], second]
        return f"[{', '.join(labels)}]", tuple(sizes[label] for label in labels)

    def of(sizes: list[int]) -> dict[str, int]:
        return {str(i): n for i, n in enumerate(sizes)}

    lhs, lhs_shape = laid_out("b", "f", {"b": batch, "f": inside * groups, **of(image)})
    rhs, rhs_shape = laid_out("o", "i", {"o": outside, "i": inside, **of(window)})
    out, out_shape = laid_out("b", "f", {"b": batch // batch_groups, "f": outside, **of(result)})
    a = g.argument(lhs_shape, dtype) if g.maybe(10) else g.value((dtype,), shape=lhs_shape)
    b = g.value((dtype,), shape=rhs_shape)
    k = inside * prod(window) * (batch_groups if batch_groups > 1 else 1)
    reversed_ = ", ".join("true" if g.maybe(15) else "false" for _ in range(spatial))
    text = (
        f"{{window_strides = {array(steps)}, padding = dense<[{', '.join(edges)}]> : tensor<{spatial}x2xi64>, "
        f"lhs_dilation = {array(widen)}, rhs_dilation = {array(spread)}, window_reversal = array<i1: {reversed_}>, "
        f"dimension_numbers = #stablehlo.conv<{lhs}x{rhs}->{out}>, "
        f"feature_group_count = {groups} : i64, batch_group_count = {batch_groups} : i64}}"
    )
    g.emit("stablehlo.convolution", [a, b], [(out_shape, *product(a, b, k, dtype))], text)


ALL = (reduce_, reduce_, reduce_pairs, reduce_window, cumulative, select_and_scatter, dot_general, dot_general,
       convolution, convolution)  # fmt: skip
