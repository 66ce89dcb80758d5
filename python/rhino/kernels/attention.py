"""cuDNN's fused attention, forward and backward, as JAX calls it.

Owns what is read from the calls' configuration (XLA's CudnnfMHABackendConfig) and which dimensions may be split.
The calls are those of `jax.nn.dot_product_attention(implementation="cudnn")`; operands and results are listed there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.rules import make_rule
from rhino.program.element_types import type_text

_CONFIG = "cudnn_fmha_backend_config"
_SHAPE = (_CONFIG, "intermediate_tensor_shape", "dimensions")
_FORWARD = ("Softmax", "ScaleBiasSoftmax", "SoftmaxDropout", "ScaleBiasSoftmaxDropout")
_LOWEST_RANK = 4
# Reasons, by factor.
_WHOLE = {
    "h": "each score sums over the whole head",
    "d": "rows of values are kept whole",
    "s": "the softmax of a query is over all its keys",
    "t": "the kernel counts positions of queries from its own first one, and the mask depends on them",
    "g": "a gradient in fp8 is no sum of parts: they have its scale, and its largest value is that of the sum",
}
_CAUSAL = ("CAUSAL", "PADDING_CAUSAL")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one attention: batch, heads of queries and of keys, positions of queries and of keys, head sizes."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head: int
    value_head: int

    def flops(self, products: int, mask: str, window: int) -> int:
        """Arithmetic of so many products of the size of the score matrix; a causal mask needs half of them."""
        keys = min(self.keys, window) if window else self.keys
        scores = self.batch * self.heads * self.queries * keys
        halved = 2 if mask in _CAUSAL and not window else 1
        return products * scores * (self.head + self.value_head) // halved


def _is_btnh(call: KernelCall, backward: bool) -> bool:
    """Whether operands have positions before heads: the configuration says which dimensions are batch in a product."""
    product = "bmm2_grad_gemm2_dot_dimension_numbers" if backward else "bmm1_dot_dimension_numbers"
    batch = [int(d) for d in call.config_of(_CONFIG, product, "lhs_batch_dimensions")]
    if batch not in ([0, 1], [0, 2]):
        raise Refused(f"its batch dimensions {batch} are neither those of [b, n, t, h] nor of [b, t, n, h]")
    return batch == [0, 2]


def _sizes(call: KernelCall, btnh: bool) -> Sizes:
    q, k, v = call.operands[:3]
    if not len(q.shape) == len(k.shape) == len(v.shape) == _LOWEST_RANK:
        raise Refused("its query, key and value have not four dimensions each")
    position, heads = (1, 2) if btnh else (2, 1)
    found = Sizes(
        q.shape[0], q.shape[heads], k.shape[heads], q.shape[position], k.shape[position], q.shape[3], v.shape[3]
    )
    if found.heads % max(1, found.kv_heads):
        raise Refused(f"its {found.heads} heads of queries are not a multiple of {found.kv_heads} of keys")
    return found


def _operand(btnh: bool, position: str, heads: str, head: str) -> str:
    return f"b {position} {heads} {head}" if btnh else f"b {heads} {position} {head}"


def _bias(bias: KernelTensor, shape: Sizes) -> str:
    """The dimensions of a bias, which may be one for the whole batch or for all heads."""
    if len(bias.shape) != _LOWEST_RANK:
        raise Refused(f"its bias has {len(bias.shape)} dimensions, not four")
    batch = "b" if bias.shape[0] == shape.batch else "b1"
    heads = "(n g)" if bias.shape[1] == shape.heads else "n1"
    return f"{batch} {heads} t s"


def _mask(call: KernelCall) -> tuple[str, int]:
    """Kind of mask and length of the sliding window, 0 for none."""
    config = call.config_of(_CONFIG)
    mask = str(config.get("mask_type", "NO_MASK"))
    if mask == "ALIBI":
        raise Refused("its mask (ALiBi) depends on the number of the head")
    return mask, int(config.get("sliding_window_length", 0) or 0)


def _check_plain(call: KernelCall) -> None:
    """Packed sequences and paged keys index over the whole batch."""
    config = call.config_of(_CONFIG)
    if int(config.get("max_seg_per_batch", 1) or 1) > 1:
        raise Refused(
            "packed sequences: the offsets of segments count elements of the whole batch; where rhino.parallelize "
            "traces the step, the call is split before the offsets are made"
        )
    if config.get("is_paged_attention"):
        raise Refused("paged keys and values: blocks of all examples are in one pool")


def _describe(call: KernelCall, operands: Sequence[str], results: Sequence[str], backward: bool, shape: Sizes) -> Known:
    fp8 = call.target.endswith("F8")
    mask, window = _mask(call)
    # One position of queries for all: nothing depends on where it is. A bias says itself which pair it is for.
    moves = mask in _CAUSAL or window > 0 or "PADDING" in mask or fp8
    whole = ["h", "s", "d", *(["t"] if moves else []), *(["g"] if fp8 and backward else [])]
    gradients = [r.replace("(", "").replace(")", "").split() for r in results if r.startswith("b")] if backward else []
    rule, names = make_rule(
        f"{', '.join(operands)} -> {', '.join(results)}", call.operands, call.results, whole=whole,
        # What a gradient has not got is summed in it.
        reduction=[f for f in "bngt" if f not in whole and any(f not in made for made in gradients)],
        sizes={"n": shape.kv_heads, "g": shape.heads // shape.kv_heads},
    )  # fmt: skip
    # Behind the tensors, of which one may have one element too.
    largest = range(3 if backward else 1, len(call.results)) if fp8 else ()
    maxima = tuple(i for i in largest if call.results[i].shape == (1,) * _LOWEST_RANK)
    # Forward: scores and their product with the values. Backward: the scores again, and four gradients' products.
    flops = shape.flops(5 if backward else 2, mask, window)
    return Known(
        rule=rule,
        names=names,
        flops=flops,
        nbytes=call.nbytes,
        dtype="f8" if fp8 else call.operands[0].dtype,
        rate="attention-backward" if backward else "attention",
        whole={f: _WHOLE[f] for f in whole},
        maxima=maxima,
    )


def _extras(call: KernelCall, first: int) -> list[str]:
    """Lengths of sequences, one number for each example, after the others."""
    found = []
    for i, tensor in enumerate(call.operands[first:]):
        if len(tensor.shape) != 1 or not tensor.dtype.endswith("i32"):
            raise Refused(f"its operand {first + i} of type {type_text(tensor.dtype, tensor.shape)} is not known")
        found.append("b")
    return found


def _scales(call: KernelCall, start: int) -> list[str]:
    """Scales of fp8: operands of one element each, of factors of their own."""
    return [" ".join(f"f{i}_{d}" for d in range(len(t.shape))) for i, t in enumerate(call.operands[start:])]


def _small(results: Sequence[KernelTensor]) -> list[str]:
    """Results besides the tensors: largest values, workspace."""
    return [" ".join(f"r{i}_{d}" for d in range(len(t.shape))) for i, t in enumerate(results)]


def _forward(call: KernelCall) -> Known:
    _check_plain(call)
    btnh = _is_btnh(call, backward=False)
    shape = _sizes(call, btnh)
    operands = [_operand(btnh, "t", "(n g)", "h"), _operand(btnh, "s", "n", "h"), _operand(btnh, "s", "n", "d")]
    if call.target.endswith("F8"):
        operands += _scales(call, 3)
    else:
        if "Bias" in call.target:
            operands.append(_bias(call.operands[3], shape))
        operands += _extras(call, len(operands))
    results = ["b (n g) t d"]
    rest = list(call.results[1:])
    stats = next((i for i, t in enumerate(rest) if t.shape == (shape.batch, shape.heads, shape.queries)), -1)
    named = _small(rest)
    if stats >= 0:
        named[stats] = "b (n g) t"
    return _describe(call, operands, [*results, *named], False, shape)


def _backward(call: KernelCall) -> Known:
    _check_plain(call)
    btnh = _is_btnh(call, backward=True)
    shape = _sizes(call, btnh)
    query, key, value = (
        _operand(btnh, "t", "(n g)", "h"), _operand(btnh, "s", "n", "h"), _operand(btnh, "s", "n", "d")
    )  # fmt: skip
    output = _operand(btnh, "t", "(n g)", "d")
    results = ["b (n g) t h", "b n s h", "b n s d"]
    if call.target.endswith("F8"):
        # q, k, v, output, its gradient, statistics, scales
        operands = [query, key, value, output, output, "b (n g) t", *_scales(call, 6)]
        return _describe(call, operands, [*results, *_small(call.results[3:])], True, shape)
    # q, k, v, statistics, gradient of the output, bias, output, lengths
    operands = [query, key, value, "b (n g) t", output]
    rest = list(call.results[3:])
    named = _small(rest)
    if "Bias" in call.target:
        bias = _bias(call.operands[5], shape)
        operands.append(bias)
        if len(rest) > 1 and rest[0].shape == call.operands[5].shape:
            named[0] = bias
    operands.append(output)
    return _describe(call, [*operands, *_extras(call, len(operands))], [*results, *named], True, shape)


def _resize(
    call: KernelCall, operands: Sequence[KernelTensor], results: Sequence[KernelTensor]
) -> Mapping[tuple[str, ...], Any]:
    """The configuration holds the shape of the scores: [batch, heads, queries, keys], as text."""
    btnh = _is_btnh(call, "Backward" in call.target)
    q, k = operands[0].shape, operands[1].shape
    scores = (q[0], q[2], q[1], k[1]) if btnh else (q[0], q[1], q[2], k[2])
    return {_SHAPE: [str(size) for size in scores]}


def _packed(call: KernelCall) -> Known:
    """Packed sequences, as the function that jax partitions: offsets are still those of each example.

    Operands: query, key, value, bias, lengths of segments, their offsets, and tables of pages; of those that are not
    used only a placeholder without elements. Gradients have statistics, output and its gradient behind them.
    """
    static = call.config_of("static_args")
    backward = call.target.endswith("bwd_impl")
    btnh, window = int(static[_LAYOUT]) == 0, static[_WINDOW]
    shape = _sizes(call, btnh)
    if any(t.elements for t in call.operands[8:10]):
        raise Refused("paged keys and values: blocks of all examples are in one pool")
    query, key = _operand(btnh, "t", "(n g)", "h"), _operand(btnh, "s", "n", "h")
    value, output = _operand(btnh, "s", "n", "d"), _operand(btnh, "t", "(n g)", "d")
    segments = call.operands[4].shape[1] if len(call.operands[4].shape) == 2 else 1
    operands = [query, key, value]
    for i, tensor in enumerate(call.operands[3:10]):
        if not tensor.elements:
            operands.append(" ".join(f"e{i}_{d}" for d in range(len(tensor.shape))))
        elif i == 0:
            operands.append(_bias(tensor, shape))
        else:
            operands.append("b" if len(tensor.shape) == 1 else f"b l{i}")
    statistics = "(b m) (n g) t" if segments > 1 else "b (n g) t"
    if backward:
        operands += [statistics, output, output]
        results = [query, key, value, *([operands[3]] if len(call.results) > 3 else [])]
    else:
        results = [output, *([statistics] if len(call.results) > 1 else [])]
    rule, names = make_rule(
        f"{', '.join(operands)} -> {', '.join(results)}", call.operands, call.results,
        # The number of keys' elements is counted with the heads of queries, and a gradient of what is shared is summed
        # by the partitioner itself.
        whole=[f for f in ("h", "s", "d", "t", "g", "m") if f in _names(operands, results)],
        sizes={"n": shape.kv_heads, "g": shape.heads // shape.kv_heads, "m": segments},
    )  # fmt: skip
    return Known(
        rule=rule,
        names=names,
        flops=shape.flops(5 if backward else 2, "CAUSAL" if "CAUSAL" in str(static[_MASK]) else "NO_MASK", window or 0),
        nbytes=call.nbytes,
        dtype=call.operands[0].dtype,
        rate="attention-backward" if backward else "attention",
        whole={f: _WHOLE.get(f, "segments of an example stay together") for f in ("h", "s", "d", "t", "m")},
    )


def _names(operands: Sequence[str], results: Sequence[str]) -> set[str]:
    return set(" ".join((*operands, *results)).replace("(", " ").replace(")", " ").split())


# Static arguments of jax's function: scale, seed, dropout rate, variadic arguments, mask, layout, window.
_MASK, _LAYOUT, _WINDOW = 4, 5, 6
_DOC = (
    "Splits the batch and the heads (of grouped queries, the heads of keys first), and positions of queries where no "
    "mask depends on them; keys stay whole, since each softmax is over all of them."
)

ENTRIES = (
    Entry(
        "cudnn-attention",
        (*(f"__cudnn$fmha{kind}" for kind in _FORWARD), "__cudnn$fmhaSoftmaxF8"),
        f"cuDNN's fused attention. {_DOC} Dropout masks are the same in every part, as with JAX's own partitioner.",
        _forward,
        _resize,
    ),
    Entry(
        "cudnn-attention-backward",
        (*(f"__cudnn$fmha{kind}Backward" for kind in _FORWARD), "__cudnn$fmhaSoftmaxBackwardF8"),
        f"Its gradients. {_DOC} Those of keys, values and a shared bias are sums over the parts that share them.",
        _backward,
        _resize,
    ),
    Entry(
        "cudnn-attention-packed",
        ("_dot_product_attention_fwd_impl", "_dot_product_attention_bwd_impl"),
        "cuDNN's attention on packed sequences, forward and backward, while a step is traced: jax makes the offsets of "
        "segments anew for a device's examples. Splits the batch and the heads.",
        _packed,
    ),
)
