"""Transformer Engine's fused attention, forward and backward, as its calls stand in a file.

Owns what their operands, results and attributes are (transformer_engine/jax/cpp_extensions/attention.py, releases 2.0
to 2.10; the numbers of layouts and masks are those of its fused_attn.h).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhino.kernels.attention import Sizes
from rhino.kernels.data import Entry, KernelCall, KernelTensor, Known, Refused
from rhino.kernels.rules import make_rule
from rhino.kernels.transformer_engine import own, unknown_version

# Query, key and value in one array [b, s, 3, h, d], key and value in one, each of its own.
_ONE, _TWO, _THREE = 5, 7, 9
_THD = range(10, 15)
_CAUSAL, _PADDED = (2, 3, 4, 5), (1, 3, 5)
_ALIBI = 3
_WHOLE = {
    "h": "each score sums over the whole head",
    "d": "rows of values are kept whole",
    "t": "positions of queries are counted from the first",
    "s": "the softmax of a query is over all its keys",
    "b": "lengths of examples are added up over the batch",
}


@dataclass(frozen=True, slots=True)
class _Read:
    """A call, read: sizes, the texts of q, k and v, and what the configuration says."""

    sizes: Sizes
    texts: tuple[str, str, str]
    padded: bool
    causal: bool
    window: int


def _read(call: KernelCall) -> _Read:
    layout, mask = int(call.config_of("qkv_layout")), int(call.config_of("mask_type"))
    if layout in _THD:
        raise Refused("packed sequences (thd): the offsets of segments count elements of the whole batch")
    if layout not in (_ONE, _TWO, _THREE):
        raise Refused(f"its layout {layout} is not known")
    if int(call.config_of("bias_type")) == _ALIBI:
        raise Refused("its mask (ALiBi) depends on the number of the head")
    q, k, v = call.operands[:3]
    ranks = (5 if layout == _ONE else 4, 5 if layout == _TWO else 4, 4)
    if len(q.shape) != ranks[0] or (layout != _ONE and len(k.shape) != ranks[1]):
        raise Refused("its batch has not one dimension")
    keys = q if layout == _ONE else k
    values = v if layout == _THREE else keys
    sizes = Sizes(
        q.shape[0], q.shape[-2], keys.shape[-2], q.shape[1], keys.shape[1], q.shape[-1], values.shape[-1]
    )  # fmt: skip
    if sizes.heads % max(1, sizes.kv_heads):
        raise Refused(f"its {sizes.heads} heads of queries are not a multiple of {sizes.kv_heads} of keys")
    texts = {
        _ONE: ("b t three (n g) h", own("k", k), own("v", v)),
        _TWO: ("b t (n g) h", "b s two n h", own("v", v)),
        _THREE: ("b t (n g) h", "b s n h", "b s n d"),
    }[layout]
    left = int(call.config.get("window_size_left", -1))
    return _Read(sizes, texts, mask in _PADDED, mask in _CAUSAL, max(0, left + 1))


def _behind(call: KernelCall, tensors: Sequence[KernelTensor], first: int, sizes: Sizes) -> list[str]:
    """Lengths, offsets and segments: read where sequences are padded or packed; of an example where they are by one."""
    return [
        f"b y{i}" if len(t.shape) == 2 and t.shape[0] == sizes.batch else own(f"y{i}", t)
        for i, t in enumerate(tensors, first)
    ]


def _bias(call: KernelCall, sizes: Sizes) -> str:
    bias = call.operands[3]
    if not int(call.config_of("bias_type")):
        return own("i", bias)
    if len(bias.shape) != 4:
        raise Refused(f"its bias has {len(bias.shape)} dimensions, not four")
    batch = "b" if bias.shape[0] == sizes.batch else "b1"
    return f"{batch} {'(n g)' if bias.shape[1] == sizes.heads else 'n1'} t s"


def _offset(tensor: KernelTensor, sizes: Sizes, name: str) -> str:
    """A learned score of each head that takes part in the softmax."""
    return f"{name}0 (n g) {name}1 {name}2" if tensor.shape == (1, sizes.heads, 1, 1) else own(name, tensor)


def _statistics(tensor: KernelTensor, sizes: Sizes, name: str) -> str:
    like = tensor.shape[:3] == (sizes.batch, sizes.heads, sizes.queries) and len(tensor.shape) == 4
    return f"b (n g) t {name}" if like else own(name, tensor)


def _known(
    call: KernelCall,
    read: _Read,
    operands: Sequence[str],
    results: Sequence[str],
    backward: bool,
    summed: Sequence[str] = (),
) -> Known:
    sizes = read.sizes
    text = f"{', '.join(operands)} -> {', '.join(results)}"
    names_of = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    kept = [f for f in ("h", "d", "t", "s", *(["b"] if read.padded else [])) if f in names_of]
    whole = {f: _WHOLE[f] for f in kept} | {f: "they are one array" for f in ("two", "three") if f in names_of}
    rule, names = make_rule(
        text, call.operands, call.results, whole=tuple(whole), reduction=[f for f in summed if f not in whole],
        sizes={"n": sizes.kv_heads, "g": sizes.heads // sizes.kv_heads},
    )  # fmt: skip
    mask = "CAUSAL" if read.causal else "NO_MASK"
    return Known(
        rule=rule, names=names, flops=sizes.flops(5 if backward else 2, mask, read.window), nbytes=call.nbytes,
        dtype=call.operands[0].dtype, rate="attention-backward" if backward else "attention", whole=whole,
    )  # fmt: skip


def _forward(call: KernelCall) -> Known:
    """q, k, v, bias [, offset], seed, lengths, .. -> result, statistics [, largest scores], random state, memory."""
    read = _read(call)
    sizes, offset = read.sizes, "softmax_type" in call.config
    if len(call.operands) < 8 or len(call.results) not in (4, 5):
        raise Refused(unknown_version(call))
    operands = [*read.texts, _bias(call, sizes)]
    operands += [_offset(call.operands[4], sizes, "o")] if offset else []
    rest = call.operands[len(operands) :]
    operands += [own("seed", rest[0]), *_behind(call, rest[1:], len(operands) + 1, sizes)]
    results = ["b t (n g) d" if "d" in " ".join(read.texts).split() else "b t (n g) h"]
    middle = call.results[1:-2]
    results += [_statistics(t, sizes, f"u{i}") for i, t in enumerate(middle)]
    results += [own("rng", call.results[-2]), own("w", call.results[-1])]
    return _known(call, read, operands, results, False)


def _backward(call: KernelCall) -> Known:
    """q, k, v, bias [, offset], statistics, random state, result, its gradient, .. -> their gradients, memory."""
    read = _read(call)
    sizes, offset = read.sizes, "softmax_type" in call.config
    if len(call.operands) < 10 + offset or len(call.results) != 5 + offset:
        raise Refused(unknown_version(call))
    operands = [*read.texts, bias := _bias(call, sizes)]
    operands += [_offset(call.operands[4], sizes, "o")] if offset else []
    rest = call.operands[len(operands) :]
    out = "b t (n g) d" if "d" in " ".join(read.texts).split() else "b t (n g) h"
    operands += [_statistics(rest[0], sizes, "u"), own("rng", rest[1]), out, out]
    operands += _behind(call, rest[4:], len(operands), sizes)
    results = [*read.texts, bias]
    results += [_offset(call.results[4], sizes, "o")] if offset else []
    # Heads of queries that share keys, and what all examples or heads share.
    made = [t.split() for t, tensor in zip(results, call.results, strict=False) if tensor.elements]
    summed = ["g"] if sizes.heads > sizes.kv_heads else []
    summed += ["b"] if any("b" not in names for names in made) else []
    summed += ["n", "g"] if any("n1" in names for names in made) else []
    results.append(own("w", call.results[-1]))
    return _known(call, read, operands, results, True, tuple(dict.fromkeys(summed)))


def _resize(
    call: KernelCall, operands: Sequence[KernelTensor], results: Sequence[KernelTensor]
) -> Mapping[tuple[str, ...], Any]:
    """The configuration holds numbers of examples and heads."""
    read = _read(KernelCall(call.target, tuple(operands), tuple(results), call.config))
    bias = operands[3].shape if int(call.config_of("bias_type")) else (0, 0)
    found = {
        "input_batch": read.sizes.batch, "attn_heads": read.sizes.heads, "num_gqa_groups": read.sizes.kv_heads,
        "bias_batch": bias[0], "bias_heads": bias[1],
    }  # fmt: skip
    return {(name,): value for name, value in found.items() if name in call.config}


_DOC = (
    "Splits the heads (of grouped queries, those of keys first) and, where no example is padded, the batch; lengths of "
    "padded ones are added up over it. Packed sequences are refused. Dropout masks are the same in every part."
)

ENTRIES = (
    Entry(
        "te-attention",
        ("te_fused_attn_forward_ffi",),
        f"Transformer Engine's fused attention. {_DOC}",
        _forward,
        _resize,
    ),
    Entry(
        "te-attention-backward",
        ("te_fused_attn_backward_ffi",),
        f"Its gradients; those of what is shared are sums. {_DOC}",
        _backward,
        _resize,
    ),
)
