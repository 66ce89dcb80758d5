"""Random element-wise operations."""

from __future__ import annotations

from math import exp, log

from bench.differential.gen import ANY, COMPLEX, FLOATS, INTEGERS, NUMBERS, Gen, Unsuitable, rounded
from bench.differential.program import LARGEST, Value, integer_bits, is_float, is_integer

_REAL = tuple(dict.fromkeys(FLOATS))
_SMOOTH = ("tanh", "logistic", "sine", "cosine", "exponential", "exponential_minus_one")
_POSITIVE = ("log", "log_plus_one", "sqrt", "rsqrt", "cbrt")


def wraps(dtype: str, bound: float) -> float:
    """The bound of an integer result: no more than the type holds."""
    if not is_integer(dtype):
        return 1.0 if dtype == "i1" else bound
    return min(bound, 2.0 ** integer_bits(dtype))


def unary(g: Gen) -> None:
    """Exact ones: negate, abs, sign, rounding to whole numbers, bits."""
    name = g.one(("negate", "abs", "sign", "floor", "ceil", "round_nearest_even", "round_nearest_afz", "not", "popcnt",
                  "count_leading_zeros", "is_finite"))  # fmt: skip
    if name in ("not", "popcnt", "count_leading_zeros"):
        v = g.exact(INTEGERS if name != "not" else (*INTEGERS, "i1"))
        bound = wraps(v.dtype, 2.0**64) if name == "not" else 64.0
        g.emit(f"stablehlo.{name}", [v], [(v.shape, v.dtype, bound, 0.0)])
    elif name == "negate":
        v = g.value((*NUMBERS, *COMPLEX))
        g.emit("stablehlo.negate", [v], [(v.shape, v.dtype, wraps(v.dtype, v.bound), v.error)])
    elif name == "abs":
        v = g.value((*_REAL, "i8", "i16", "i32", "i64"))
        g.emit("stablehlo.abs", [v], [(v.shape, v.dtype, v.bound, v.error)])
    elif name == "sign":
        v = g.exact((*_REAL, "i8", "i16", "i32", "i64"))
        g.emit("stablehlo.sign", [v], [(v.shape, v.dtype, 1.0, 0.0)])
    elif name == "is_finite":
        v = g.value(_REAL)
        g.emit("stablehlo.is_finite", [v], [(v.shape, "i1", 1.0, 0.0)])
    else:
        v = g.exact(_REAL)
        g.emit(f"stablehlo.{name}", [v], [(v.shape, v.dtype, v.bound + 1, 0.0)])


def smooth(g: Gen) -> None:
    """Functions of floating point numbers."""
    name = g.one(_SMOOTH)
    v = g.value((*_REAL[:4], *COMPLEX[:1]) if name in ("sine", "cosine") else _REAL, where=lambda v: v.bound <= 20)
    steep, top = 1.0, 1.0
    if name.startswith("exp") or v.dtype.startswith("complex"):
        if v.bound > 4:
            raise Unsuitable
        steep = top = exp(v.bound)
    result = rounded(v.dtype, top, steep * v.error, False, 8)
    g.emit(f"stablehlo.{name}", [v], [(v.shape, *result)])


def positive(g: Gen) -> None:
    """Functions of numbers from 1 on."""
    name = g.one(_POSITIVE)
    v = shifted(g, g.value(_REAL[:4]))
    top = {"log": log(v.bound + 1), "log_plus_one": log(v.bound + 2), "rsqrt": 1.0}.get(name, v.bound)
    g.emit(f"stablehlo.{name}", [v], [(v.shape, *rounded(v.dtype, max(top, 1.0), v.error, False, 4))])


def shifted(g: Gen, v: Value) -> Value:
    """|v| + 1."""
    size = g.emit("stablehlo.abs", [v], [(v.shape, v.dtype, v.bound, v.error)])[0]
    one = g.constant(v.shape, v.dtype, 1)
    return g.emit("stablehlo.add", [size, one], [(v.shape, *rounded(v.dtype, v.bound + 1, v.error, True))])[0]


def arithmetic(g: Gen) -> None:
    """Add, subtract, multiply."""
    name = g.one(("add", "subtract", "multiply"))
    a = g.value((*NUMBERS, *COMPLEX, "i1") if name != "subtract" else (*NUMBERS, *COMPLEX))
    b = g.like(a)
    if name == "multiply":
        twice = 2 if a.dtype.startswith("complex") else 1
        bound, error = twice * a.bound * b.bound, twice * (a.bound * b.error + b.bound * a.error)
    else:
        bound, error = a.bound + b.bound, a.error + b.error
    result = rounded(a.dtype, wraps(a.dtype, bound), error, True)
    g.emit(f"stablehlo.{name}", [a, b], [(a.shape, *result)])


def extremes(g: Gen) -> None:
    """Maximum and minimum."""
    a = g.value((*NUMBERS, "i1"))
    b = g.like(a)
    error = max(a.error, b.error)
    g.emit(f"stablehlo.{g.one(('maximum', 'minimum'))}", [a, b], [(a.shape, a.dtype, max(a.bound, b.bound), error)])


def division(g: Gen) -> None:
    """Divide, remainder and power, by what is not zero."""
    name = g.one(("divide", "remainder", "power", "atan2"))
    a = g.value((*_REAL[:4], *INTEGERS) if name in ("divide", "remainder") else _REAL[:4])
    if is_integer(a.dtype):
        b = g.like(a)
        one = g.constant(b.shape, b.dtype, 1)
        b = g.emit("stablehlo.or", [b, one], [(b.shape, b.dtype, wraps(b.dtype, 2.0**64), 0.0)])[0]
        g.emit(f"stablehlo.{name}", [a, b], [(a.shape, a.dtype, a.bound, 0.0)])
        return
    b = shifted(g, g.like(a))
    if name == "remainder":
        if a.error or b.error:
            raise Unsuitable
        g.emit("stablehlo.remainder", [a, b], [(a.shape, a.dtype, a.bound, 0.0)])
    elif name == "divide":
        result = rounded(a.dtype, a.bound, a.error + a.bound * b.error, False, 2)
        g.emit("stablehlo.divide", [a, b], [(a.shape, *result)])
    elif name == "atan2":
        g.emit("stablehlo.atan2", [a, b], [(a.shape, *rounded(a.dtype, 1.6, a.error + b.error, False, 4))])
    else:
        base = shifted(g, a)
        if base.dtype != "f32" or base.error or b.error:
            raise Unsuitable
        half = g.emit("stablehlo.divide", [g.constant(b.shape, "f32", 1), b], [(b.shape, *rounded("f32", 1, 0, False))])
        g.emit("stablehlo.power", [base, half[0]], [(a.shape, *rounded("f32", base.bound, 0, False, 32))])


def bits(g: Gen) -> None:
    """And, or, xor and shifts."""
    name = g.one(("and", "or", "xor", "shift_left", "shift_right_logical", "shift_right_arithmetic"))
    a = g.value(INTEGERS if name.startswith("shift") else (*INTEGERS, "i1"))
    b = g.like(a)
    g.emit(f"stablehlo.{name}", [a, b], [(a.shape, a.dtype, wraps(a.dtype, 2.0**64), 0.0)])


def compare(g: Gen) -> None:
    """Compare what every run gives alike."""
    a = g.exact(ANY)
    b = g.exact((a.dtype,), shape=a.shape)
    ways = ("EQ", "NE") if a.dtype.startswith("complex") else ("EQ", "NE", "LT", "LE", "GT", "GE")
    text = f"{{comparison_direction = #stablehlo<comparison_direction {g.one(ways)}>}}"
    g.emit("stablehlo.compare", [a, b], [(a.shape, "i1", 1.0, 0.0)], text)


def select(g: Gen) -> None:
    """Select, by a whole predicate or a scalar one."""
    a = g.value()
    b = g.like(a)
    p = g.value(("i1",), shape=() if g.maybe(20) else a.shape)
    result = (a.shape, a.dtype, max(a.bound, b.bound), max(a.error, b.error))
    g.emit("stablehlo.select", [p, a, b], [result])


def clamp(g: Gen) -> None:
    """Clamp between tensors or scalars."""
    v = g.value(NUMBERS)
    scalars = g.maybe(30)
    low, high = (g.value((v.dtype,), shape=() if scalars else v.shape) for _ in range(2))
    result = (v.shape, v.dtype, max(low.bound, v.bound, high.bound), max(low.error, v.error, high.error))
    g.emit("stablehlo.clamp", [low, v, high], [result])


def convert(g: Gen) -> None:
    """Convert between any two types."""
    to = g.one(ANY)
    if to == "i1" or is_integer(to):
        v = g.exact((*NUMBERS, "i1"))
        if is_float(v.dtype):
            if is_integer(to) and v.bound >= 2.0 ** (integer_bits(to) - 1):
                raise Unsuitable
            if to.startswith("u"):
                v = g.emit("stablehlo.abs", [v], [(v.shape, v.dtype, v.bound, 0.0)])[0]
        bound = 1.0 if to == "i1" else wraps(to, v.bound if not to.startswith("u") else 2.0**64)
        g.emit("stablehlo.convert", [v], [(v.shape, to, bound, 0.0)])
        return
    v = g.value(ANY if to.startswith("complex") else (*NUMBERS, "i1"))
    if v.bound > LARGEST[to]:
        raise Unsuitable
    g.emit("stablehlo.convert", [v], [(v.shape, *rounded(to, v.bound, v.error, True))])


def bitcast(g: Gen) -> None:
    """The bits of integers as others, wider and narrower too."""
    v = g.exact(INTEGERS, most=3)
    to = g.one(INTEGERS)
    have, want = integer_bits(v.dtype), integer_bits(to)
    shape = v.shape
    if want < have:
        shape = (*shape, have // want)
    elif want > have:
        if not shape or shape[-1] != want // have:
            v = g.argument((*shape[:2], want // have), v.dtype)
            shape = v.shape
        shape = shape[:-1]
    g.emit("stablehlo.bitcast_convert", [v], [(shape, to, wraps(to, 2.0**64), 0.0)])


def parts(g: Gen) -> None:
    """Complex numbers made and taken apart."""
    name = g.one(("complex", "real", "imag", "abs"))
    if name == "complex":
        a = g.value(("f32", "f64"))
        b = g.like(a)
        kind = f"complex<{a.dtype}>"
        g.emit("stablehlo.complex", [a, b], [(a.shape, kind, max(a.bound, b.bound), max(a.error, b.error))])
        return
    v = g.value(COMPLEX)
    part = v.dtype[8:11]
    bound, error = (v.bound, v.error) if name != "abs" else (1.5 * v.bound, 2 * v.error)
    result = (part, bound, error) if name != "abs" else rounded(part, bound, error, False, 4)
    g.emit(f"stablehlo.{name}", [v], [(v.shape, *result)])


def reduce_precision(g: Gen) -> None:
    """Fewer bits."""
    v = g.value(("f32", "f64", "bf16", "f16"))
    step = 2.0**-7 * v.bound
    text = "{exponent_bits = 8 : i32, mantissa_bits = 7 : i32}"
    if v.dtype == "f16":
        text = "{exponent_bits = 5 : i32, mantissa_bits = 7 : i32}"
    exact = v.error == 0 and v.bound <= 128
    g.emit("stablehlo.reduce_precision", [v], [(v.shape, v.dtype, 2 * v.bound, 0.0 if exact else v.error + step)], text)


def map_(g: Gen) -> None:
    """A region on every element."""
    a = g.value(("f32", "i32"), least=1)
    b = g.like(a)
    kind = f"tensor<{a.dtype}>"
    body = (
        f'{{\n^bb0(%m0: {kind}, %m1: {kind}):\n  %m2 = "stablehlo.add"(%m0, %m1) : ({kind}, {kind}) -> {kind}\n'
        f'  "stablehlo.return"(%m2) : ({kind}) -> ()\n}}'
    )
    dims = ", ".join(map(str, range(len(a.shape))))
    result = rounded(a.dtype, wraps(a.dtype, a.bound + b.bound), a.error + b.error, True)
    g.emit("stablehlo.map", [a, b], [(a.shape, *result)], f"{{dimensions = array<i64: {dims}>}}", [body])


def chlo(g: Gen) -> None:
    """Operations of CHLO, as jax writes them."""
    name = g.one(("erf", "erf_inv", "lgamma", "digamma", "square", "tan", "asin", "top_k"))
    if name == "top_k":
        v = g.exact(("f32", "i32", "bf16"), least=1)
        if v.shape[-1] < 2:
            raise Unsuitable
        k = g.whole(1, v.shape[-1])
        shape = (*v.shape[:-1], k)
        results = [(shape, v.dtype, v.bound, 0.0), (shape, "i32", float(v.shape[-1]), 0.0)]
        g.emit("chlo.top_k", [v], results, f"{{k = {k} : i64}}")
        return
    v = g.value(("f32",))
    if name in ("erf", "square", "tan"):
        steep = {"erf": 1.2, "square": 2 * v.bound, "tan": 1.0}[name]
        bound = {"erf": 1.0, "square": v.bound**2, "tan": 1.0}[name]
        if name == "tan":
            raise Unsuitable
        g.emit(f"chlo.{name}", [v], [(v.shape, *rounded("f32", bound, steep * v.error, name == "square", 8))])
        return
    # Within (-1, 1), or from 1 on: where these are smooth.
    if name in ("erf_inv", "asin"):
        half = g.emit("stablehlo.tanh", [v], [(v.shape, *rounded("f32", 1.0, v.error, False, 4))])[0]
        scale = g.constant(v.shape, "f32", 0.5)
        v = g.emit("stablehlo.multiply", [half, scale], [(v.shape, "f32", 0.5, half.error)])[0]
    else:
        v = shifted(g, v)
        if v.bound > 50:
            raise Unsuitable
    bound = {"erf_inv": 1.0, "asin": 1.0, "lgamma": v.bound * log(v.bound + 1), "digamma": log(v.bound + 2)}[name]
    g.emit(f"chlo.{name}", [v], [(v.shape, *rounded("f32", max(1.0, bound), 5 * v.error, False, 64))])


def barrier(g: Gen) -> None:
    """What the optimiser must not look through."""
    operands = [g.value() for _ in range(g.whole(1, 3))]
    g.emit("stablehlo.optimization_barrier", operands, [(v.shape, v.dtype, v.bound, v.error) for v in operands])


ALL = (unary, smooth, positive, arithmetic, arithmetic, extremes, division, bits, compare, select, clamp, convert,
       convert, bitcast, parts, reduce_precision, map_, chlo, barrier)  # fmt: skip
