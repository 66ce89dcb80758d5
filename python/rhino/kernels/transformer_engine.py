"""Transformer Engine's calls as they stand in a file exported on one device: products, norms, activations, casts.

Owns what their operands, results and attributes are (transformer_engine/jax/cpp_extensions, releases 1.11 to 2.10). Its
attention is in `transformer_engine_attention`. While a step is traced, Transformer Engine's own partitioner is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.rules import make_rule

_TRACED = "where rhino.parallelize traces the step, Transformer Engine splits it"
_BLOCKS = f"its scales are of blocks, padded and in tiles; {_TRACED}"
# Rows of a softmax that one block of threads takes, by the number of keys; and what has to be a multiple of four.
_THREADS, _WARP, _MOST_KEYS_FOR_TWO, _FOUR = 128, 32, 128, 4


def own(prefix: str, tensor: KernelTensor) -> str:
    """Factors of its own for each dimension: of scales, placeholders, and memory to work in."""
    return " ".join(f"{prefix}_{d}" for d in range(len(tensor.shape)))


def _rows(count: int) -> list[str]:
    return [f"x{i}" for i in range(count)]


def _vector(
    call: KernelCall, operands: Sequence[str], results: Sequence[str], whole: Mapping[str, str],
    reduction: Sequence[str] = (), maxima: Sequence[int] = (),
) -> Known:  # fmt: skip
    """A call that takes the time of its memory traffic."""
    rule, names = make_rule(
        f"{', '.join(operands)} -> {', '.join(results)}", call.operands, call.results, whole=tuple(whole),
        reduction=reduction,
    )  # fmt: skip
    return Known(rule, names, 0, call.nbytes, call.operands[0].dtype, "vector", whole, tuple(maxima))


def unknown_version(call: KernelCall) -> str:
    """Why a call is refused that has other operands or results than those of the releases that were read."""
    return f"it has {len(call.operands)} operands and {len(call.results)} results, as no version of it that is known"


def _count(call: KernelCall, operands: Sequence[int], results: Sequence[int]) -> None:
    if len(call.operands) not in operands or len(call.results) not in results:
        raise Refused(unknown_version(call))


def _copy(tensor: KernelTensor, names: Sequence[str], shape: Sequence[int], axis: int) -> str:
    """The names of a second copy, which is transposed at an axis where one scale is for all; or of its placeholder."""
    if tensor.elements <= 1 and prod(shape) > 1:
        return own("r1", tensor)
    if tensor.shape != (*shape[axis:], *shape[:axis]):
        raise Refused(f"its second copy has shape {list(tensor.shape)}, which is not its result transposed")
    return " ".join((*names[axis:], *names[:axis]))


def _quantized(call: KernelCall, names: Sequence[str], shape: Sequence[int], axis: int) -> list[str]:
    """The first five results of what can cast to fp8: values, transposed copy, scales of both, largest value."""
    out, copy, *scales = call.results[:4]
    if any(t.elements > 1 for t in scales):
        raise Refused(_BLOCKS)
    first = " ".join(names) if out.shape == tuple(shape) else own("r0", out)
    rest = [own(f"r{i}", t) for i, t in enumerate(call.results[2:5], 2)]
    return [first, _copy(copy, names, shape, axis), *rest]


# Scales are those of the operand, the same in each part; the largest value is that of all of them.
_SCALES = (2, 3, 4)


def _norm_forward(call: KernelCall) -> Known:
    """x, scale [, largest value], gamma, beta -> values, copy, two scales, largest value, mean, deviation, memory."""
    _count(call, (4, 5), (8,))
    x, gamma = call.operands[0], call.operands[-2]
    rows, h = _rows(len(x.shape) - 1), "h"
    if gamma.shape != x.shape[-1:]:
        raise Refused(f"its gamma has shape {list(gamma.shape)}, and its rows {x.shape[-1]} elements")
    operands = [" ".join((*rows, h)), *(own(f"a{i}", t) for i, t in enumerate(call.operands[1:-2]))]
    operands += [h if t.shape == gamma.shape else own(f"p{i}", t) for i, t in enumerate(call.operands[-2:])]
    results = _quantized(call, (*rows, h), x.shape, -1)
    results += [" ".join(rows) if t.shape == x.shape[:-1] else own(f"s{i}", t) for i, t in enumerate(call.results[5:7])]
    return _vector(call, operands, [*results, own("w", call.results[7])], {h: _ROW}, maxima=_SCALES)


def _norm_backward(call: KernelCall) -> Known:
    """Gradient, x, mean, deviation, gamma -> gradients of x, gamma, beta, memory."""
    _count(call, (5,), (4,))
    x, gamma = call.operands[1], call.operands[4]
    rows, h = _rows(len(x.shape) - 1), "h"
    text = " ".join((*rows, h))
    operands = [text, text]
    operands += [
        " ".join(rows) if t.shape == x.shape[:-1] else own(f"s{i}", t) for i, t in enumerate(call.operands[2:4])
    ]
    results = [text, *(h if t.shape == gamma.shape else own(f"r{i}", t) for i, t in enumerate(call.results[1:3]))]
    return _vector(call, [*operands, h], [*results, own("w", call.results[3])], {h: _ROW}, reduction=rows)


_ROW = "mean and variance are over the whole row"


def _act(call: KernelCall) -> Known:
    """x [.., kinds, h], scale [, largest value] -> [.., h]; with fp8 a copy, scales and the largest value."""
    _count(call, (1, 2, 3), (1, 5))
    x, out = call.operands[0], call.results[0]
    rows = _rows(len(x.shape) - 2)
    if x.shape[:-2] + x.shape[-1:] != out.shape:
        raise Refused(f"its result has shape {list(out.shape)}, and its operand {list(x.shape)}")
    operands = [" ".join((*rows, "a", "h")), *(own(f"a{i}", t) for i, t in enumerate(call.operands[1:]))]
    names = (*rows, "h")
    results = _quantized(call, names, out.shape, -1) if len(call.results) > 1 else [" ".join(names)]
    return _vector(call, operands, results, {"a": _GATE}, maxima=_SCALES if len(results) > 1 else ())


_GATE = "a value is multiplied by its gate"


def _act_backward(call: KernelCall) -> Known:
    """Gradient [.., h], x [.., kinds, h], scale [, largest value] -> that of x; as `_cast` gives it."""
    _count(call, (2, 3, 4), (1, 7))
    x = call.operands[1]
    rows = _rows(len(x.shape) - 2)
    names = (*rows, "a", "h")
    operands = [" ".join((*rows, "h")), " ".join(names), *(own(f"a{i}", t) for i, t in enumerate(call.operands[2:]))]
    if len(call.results) == 1:
        return _vector(call, operands, [" ".join(names)], {"a": _GATE})
    return _cast_to(call, operands, names, x.shape, -2, {"a": _GATE})


def _cast(call: KernelCall) -> Known:
    """x, scale, .. -> values, transposed copy, two scales, largest value, sum of the leading dimensions, memory."""
    if len(call.results) != 7 or len(call.operands) < 2:
        _count(call, (2,), (7,))
    x = call.operands[0]
    names = _rows(len(x.shape))
    operands = [" ".join(names), *(own(f"a{i}", t) for i, t in enumerate(call.operands[1:]))]
    axis = int(call.config_of("flatten_axis"))
    return _cast_to(call, operands, names, x.shape, axis if axis < 0 else axis - len(x.shape), {})


def _cast_to(
    call: KernelCall,
    operands: Sequence[str],
    names: Sequence[str],
    shape: Sequence[int],
    axis: int,
    whole: Mapping[str, str],
) -> Known:
    results = _quantized(call, names, shape, axis)
    summed, memory = call.results[5:]
    has_sum = bool(call.config.get("is_dbias", True)) and summed.shape == tuple(shape[axis:])
    results += [" ".join(names[axis:]) if has_sum else own("r5", summed), own("w", memory)]
    return _vector(call, operands, results, whole, names[:axis] if has_sum else (), _SCALES)


def _softmax(call: KernelCall) -> Known:
    """Scores [.., heads, queries, keys], and a mask for all heads or, for gradients, what the softmax was."""
    causal, masked = "upper_triang" in call.target, "scaled_masked" in call.target and "forward" in call.target
    backward = "backward" in call.target
    _count(call, (2 if masked or backward else 1,), (1,))
    scores = call.operands[0]
    if len(scores.shape) < 3:
        raise Refused("its scores have no heads, queries and keys")
    batch = _rows(len(scores.shape) - 3)
    # A device's part is what the kernel can do: whole blocks of rows, and a multiple of four softmaxes of one example.
    block = max(_FOUR, _rows_per_block(scores.shape[-1]))
    inner = _FOUR if not causal else max(_FOUR, block)
    heads, queries = scores.shape[-3], scores.shape[-2]
    sizes: dict[str, int] = {}
    whole = {"k": "each softmax is over all keys"}
    h, q = "h", "q"
    if not causal and queries > block and queries % block == 0:
        q, sizes["qi"] = "(q qi)", block
        whole["qi"] = f"one block of threads takes {block} rows"
    else:
        whole["q"] = "the mask counts positions of queries" if causal else "one block of threads takes all rows"
    if heads > inner and heads % inner == 0:
        h, sizes["hi"] = "(h hi)", inner
        whole["hi"] = f"the kernel takes a multiple of {inner} heads"
    elif heads % inner:
        whole |= dict.fromkeys([*batch, "h"], f"the kernel takes a multiple of {inner} heads of all examples together")
    else:
        whole["h"] = f"the kernel takes a multiple of {inner} heads"
    text = " ".join((*batch, h, q, "k"))
    operands = [text]
    if backward:
        operands.append(text)
    elif masked:
        mask = call.operands[1].shape
        kept = [name if n == m else f"m_{name}" for name, n, m in zip(batch, mask, scores.shape, strict=False)]
        operands.append(" ".join((*kept, "one", q, "k")))
    rule, names = make_rule(
        f"{', '.join(operands)} -> {text}", call.operands, call.results, whole=tuple(whole), sizes=sizes
    )
    return Known(rule, names, 0, call.nbytes, scores.dtype, "vector", whole)


def _rows_per_block(keys: int) -> int:
    power = 1 << max(0, keys - 1).bit_length()
    return _THREADS // min(power, _WARP) * (2 if power <= _MOST_KEYS_FOR_TWO else 1)


def _product(call: KernelCall) -> Known:
    """lhs, scale, rhs, scale, bias, [argument of gelu's gradient,] factors -> result [, gradients], memory."""
    second = call.target == "te_gemm_v2_ffi"
    _count(call, (7,) if second else (6, 8), (2,) if second else (4,))
    config = call.config.get("config", call.config)
    for name in ("lhs_axis_boundary", "rhs_axis_boundary", "lhs_transposed", "rhs_transposed"):
        if name not in config:
            raise Refused(f"its configuration has no {name}")
    if int(config.get("collective_op", 0)):
        raise Refused("it sends to other devices while it computes")
    lhs, rhs, bias, out = call.operands[0], call.operands[2], call.operands[4], call.results[0]
    if any(call.operands[i].elements > 1 for i in (1, 3)):
        raise Refused(_BLOCKS)
    if config.get("grad") and bias.elements:
        raise Refused("it makes a bias' gradient from what it contracts")
    left, lk, m = _sides(lhs, int(config["lhs_axis_boundary"]), bool(config["lhs_transposed"]), "m")
    # Of rhs what is contracted is in front, unless it is transposed.
    right, rk, n = _sides(rhs, int(config["rhs_axis_boundary"]), not config["rhs_transposed"], "n")
    if lk != rk:
        raise Refused(f"what it contracts has shapes {lk} and {rk}")
    text = " ".join((*m, *n))
    operands = [left, own("a", call.operands[1]), right, own("b", call.operands[3])]
    operands.append(" ".join(n) if bias.elements and len(bias.shape) == len(n) else own("c", bias))
    operands += [text if t.shape == out.shape else own(f"d{i}", t) for i, t in enumerate(call.operands[5:])]
    results = [text, *(text if t.shape == out.shape else own(f"r{i}", t) for i, t in enumerate(call.results[1:], 1))]
    contracted = [f"k{i}" for i in range(len(lk))]
    linear = not bias.elements and not config.get("fuse_gelu")
    whole = {} if linear else dict.fromkeys(contracted, "the bias or gelu behind the product is of the whole sum")
    rule, names = make_rule(
        f"{', '.join(operands)} -> {', '.join(results)}", call.operands, call.results, whole=tuple(whole),
        reduction=contracted if linear else (),
    )  # fmt: skip
    return Known(rule, names, 2 * out.elements * prod(lk), call.traffic(len(call.results) - 1), lhs.dtype, whole=whole)


def _sides(tensor: KernelTensor, boundary: int, front: bool, letter: str) -> tuple[str, list[int], list[str]]:
    """Names of all dimensions, sizes of those that are contracted (in front of the boundary or behind), other names."""
    shape, count = tensor.shape, len(tensor.shape)
    split = boundary % count if boundary < 0 else boundary
    contracted = range(split) if front else range(split, count)
    kept = [d for d in range(count) if d not in contracted]
    named = {d: f"k{i}" for i, d in enumerate(contracted)} | {d: f"{letter}{i}" for i, d in enumerate(kept)}
    return " ".join(named[d] for d in range(count)), [shape[d] for d in contracted], [named[d] for d in kept]


def _refused(call: KernelCall) -> Known:
    raise Refused(f"which rows belong to a group is in its operands; {_TRACED}")


_FP8 = "With fp8 by one scale for all, the largest value is that of all parts; scales of blocks are refused."
_SOFTMAX = ("scaled_softmax", "scaled_masked_softmax", "scaled_upper_triang_masked_softmax")

ENTRIES = (
    Entry(
        "te-product",
        ("te_gemm_ffi", "te_gemm_v2_ffi"),
        "Transformer Engine's product. Splits rows and columns; what is contracted as a sum, where no bias and no gelu "
        "is behind it.",
        _product,
    ),
    Entry(
        "te-norm",
        ("te_norm_forward_ffi",),
        f"Layer and RMS normalisation. Splits rows, which stay whole. {_FP8}",
        _norm_forward,
    ),
    Entry(
        "te-norm-backward",
        ("te_norm_backward_ffi",),
        "Their gradients. Splits rows; the gradients of gamma and beta are sums over them.",
        _norm_backward,
    ),
    Entry(
        "te-activation",
        ("te_act_lu_ffi",),
        f"Activations, gated or not. Splits all but values and gates. {_FP8}",
        _act,
    ),
    Entry(
        "te-activation-backward",
        ("te_dact_lu_ffi", "te_dact_dbias_quantize_ffi"),
        f"Their gradients; that of a bias is a sum over rows. Splits all but values and gates. {_FP8}",
        _act_backward,
    ),
    Entry(
        "te-cast",
        ("te_dbias_quantize_ffi",),
        "Casts to fp8, with a transposed copy and the gradient of a bias, which is a sum over rows. Splits everything. "
        f"{_FP8}",
        _cast,
    ),
    Entry(
        "te-softmax",
        tuple(f"te_{kind}_{way}_ffi" for kind in _SOFTMAX for way in ("forward", "backward")),
        "Softmax of scores, with a mask. Splits examples, heads and (without a causal mask) queries, in parts that the "
        "kernel can do; keys stay whole.",
        _softmax,
    ),
    Entry(
        "te-grouped",
        (
            "te_grouped_gemm_ffi", "te_grouped_gemm_v2_ffi", "te_grouped_quantize_ffi",
            "te_grouped_gemm_d2h_group_sizes_ffi",
        ),
        "Products and casts of groups of rows. Not split: the sizes of groups are data.",
        _refused,
    ),
)  # fmt: skip
