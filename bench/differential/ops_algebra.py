"""Random linear algebra, Fourier transforms and normalisation."""

from __future__ import annotations

from math import prod

from bench.differential.gen import Gen, Unsuitable, array, rounded
from bench.differential.program import EPSILON, Value

_BATCH_NORM = "{{epsilon = 1.000000e-01 : f32, feature_index = {} : i64}}"


def fft(g: Gen) -> None:
    kind = g.one(("FFT", "IFFT", "RFFT", "IRFFT"))
    rank = g.whole(1, 2)
    real = g.one(("f32", "f64"))
    v = g.value((real,) if kind == "RFFT" else (f"complex<{real}>",), least=rank, where=lambda v: prod(v.shape) > 0)
    lengths = list(v.shape[-rank:])
    shape = list(v.shape)
    if kind == "RFFT":
        shape[-1] = shape[-1] // 2 + 1
    elif kind == "IRFFT":
        lengths[-1] = 2 * (shape[-1] - 1) if shape[-1] > 1 else 1
        shape[-1] = lengths[-1]
    n = prod(lengths)
    out = real if kind == "IRFFT" else f"complex<{real}>"
    bound, error = (2 * n * v.bound, 2 * n * v.error) if not kind.startswith("I") else (2 * v.bound, 2 * v.error)
    result = rounded(out, bound, error, False, 16)
    text = f"{{fft_type = #stablehlo<fft_type {kind}>, fft_length = {array(lengths)}}}"
    g.emit("stablehlo.fft", [v], [(tuple(shape), *result)], text)


def _square(g: Gen, dtype: str) -> Value:
    n = g.one((1, 2, 3, 4, 8))
    return g.argument((*g.shape(most=2, room=32), n, n), dtype, 1.0)


def cholesky(g: Gen) -> None:
    """Of a product with its transpose, made definite."""
    dtype = g.one(("f32", "f64"))
    a = _square(g, dtype)
    rank, n = len(a.shape), a.shape[-1]
    batch = list(range(rank - 2))
    numbers = (
        f"lhs_batching_dimensions = {batch}, rhs_batching_dimensions = {batch}, "
        f"lhs_contracting_dimensions = [{rank - 1}], rhs_contracting_dimensions = [{rank - 1}]"
    )
    text = f"{{dot_dimension_numbers = #stablehlo.dot<{numbers}>}}"
    b = g.emit("stablehlo.dot_general", [a, a], [(a.shape, dtype, float(n), 0.0)], text)[0]
    c = g.emit("stablehlo.add", [b, _identity(g, a.shape, dtype)], [(a.shape, dtype, n + 8.0, 0.0)])[0]
    error = 4096 * EPSILON[dtype]
    lower = "true" if g.maybe() else "false"
    found = g.emit("stablehlo.cholesky", [c], [(a.shape, dtype, n + 8.0, error)], f"{{lower = {lower}}}")[0]
    # The other triangle is whatever it is.
    keep = _triangle(g, a.shape, lower == "true")
    zero = g.constant(a.shape, dtype, 0)
    g.pool.remove(found)
    g.emit("stablehlo.select", [keep, found, zero], [(a.shape, dtype, n + 8.0, error)])


def _triangle(g: Gen, shape: tuple[int, ...], lower: bool) -> Value:
    rank = len(shape)
    rows, columns = (
        g.emit("stablehlo.iota", [], [(shape, "i32", 8.0, 0.0)], f"{{iota_dimension = {d} : i64}}")[0]
        for d in (rank - 2, rank - 1)
    )
    text = f"{{comparison_direction = #stablehlo<comparison_direction {'GE' if lower else 'LE'}>}}"
    return g.emit("stablehlo.compare", [rows, columns], [(shape, "i1", 1.0, 0.0)], text)[0]


def _identity(g: Gen, shape: tuple[int, ...], dtype: str) -> Value:
    """Eight times the unit matrix."""
    rank = len(shape)
    rows, columns = (
        g.emit("stablehlo.iota", [], [(shape, "i32", 8.0, 0.0)], f"{{iota_dimension = {d} : i64}}")[0]
        for d in (rank - 2, rank - 1)
    )
    text = "{comparison_direction = #stablehlo<comparison_direction EQ>}"
    same = g.emit("stablehlo.compare", [rows, columns], [(shape, "i1", 1.0, 0.0)], text)[0]
    eight, zero = g.constant(shape, dtype, 8), g.constant(shape, dtype, 0)
    return g.emit("stablehlo.select", [same, eight, zero], [(shape, dtype, 8.0, 0.0)])[0]


def triangular_solve(g: Gen) -> None:
    dtype = g.one(("f32", "f64"))
    a = _square(g, dtype)
    c = g.emit("stablehlo.add", [a, _identity(g, a.shape, dtype)], [(a.shape, dtype, 9.0, 0.0)])[0]
    left = g.maybe()
    n, other = a.shape[-1], g.one((1, 2, 3, 4, 8))
    shape = (*a.shape[:-2], *((n, other) if left else (other, n)))
    b = g.value((dtype,), shape=shape)
    transpose = g.one(("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"))
    text = (
        f"{{left_side = {str(left).lower()}, lower = {str(g.maybe()).lower()}, unit_diagonal = false, "
        f"transpose_a = #stablehlo<transpose {transpose}>}}"
    )
    if b.error > 1e-3 * b.bound:
        raise Unsuitable
    # Rows add up to less than twice the diagonal.
    error = 64 * b.error + 1024 * EPSILON[dtype] * b.bound
    g.emit("stablehlo.triangular_solve", [c, b], [(shape, dtype, 8 * b.bound + 1, error)], text)


def batch_norm(g: Gen) -> None:
    """Training, inference and gradient."""
    v = g.value(("f32",), least=2, where=lambda v: prod(v.shape) > 0 and v.error == 0 and v.bound < 100)
    dim = g.whole(0, len(v.shape) - 1)
    n = v.shape[dim]
    scale, offset = (g.exact(("f32",), shape=(n,)) for _ in range(2))
    if max(scale.bound, offset.bound) > 100:
        raise Unsuitable
    top = 64.0 * v.bound * max(1.0, scale.bound) + offset.bound
    error = 1e-4 * top
    text = _BATCH_NORM.format(dim)
    name = g.one(("training", "inference", "grad"))
    if name == "training":
        statistics = [((n,), "f32", v.bound**2 + v.bound, 1e-4 * (v.bound**2 + v.bound))] * 2
        g.emit("stablehlo.batch_norm_training", [v, scale, offset], [(v.shape, "f32", top, error), *statistics], text)
        return
    mean = g.exact(("f32",), shape=(n,))
    size = g.exact(("f32",), shape=(n,))
    variance = g.emit("stablehlo.abs", [size], [((n,), "f32", size.bound, 0.0)])[0]
    if max(mean.bound, size.bound) > 100:
        raise Unsuitable
    top = 4 * (v.bound + mean.bound) * max(1.0, scale.bound) + offset.bound
    if name == "inference":
        operands = [v, scale, offset, mean, variance]
        g.emit("stablehlo.batch_norm_inference", operands, [(v.shape, "f32", top, 1e-4 * top)], text)
        return
    grad = g.exact(("f32",), shape=v.shape)
    if grad.bound > 100:
        raise Unsuitable
    count = prod(v.shape)
    top = 64.0 * count * (v.bound + mean.bound + 1) ** 2 * (grad.bound + 1) * (scale.bound + 1)
    results = [(v.shape, "f32", top, 1e-6 * top), ((n,), "f32", top, 1e-6 * top), ((n,), "f32", top, 1e-6 * top)]
    g.emit("stablehlo.batch_norm_grad", [v, scale, mean, variance, grad], results, text)


ALL = (fft, fft, cholesky, triangular_solve, batch_norm)
