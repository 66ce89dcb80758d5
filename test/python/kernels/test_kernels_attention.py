"""cuDNN's attention, as jax calls it for an H100: split as its rule says, parts make what the whole call makes."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

import rhino
from rhino.compile import as_on
from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.ir.kernel_calls import is_opaque, read_call
from rhino.kernels.data import KernelCall

from .parts import check_parts, known

CONFIG = "cudnn_fmha_backend_config"


def calls(kv: int = 2, bias: tuple[int, ...] = (), lengths: bool = False, **options: Any) -> list[KernelCall]:
    """The calls, forward and backward, of attention over 4 examples, 6 positions and 4 heads of 8."""
    query, key = (jax.ShapeDtypeStruct((4, 6, heads, 8), jnp.bfloat16) for heads in (4, kv))
    given = [jax.ShapeDtypeStruct(bias, jnp.bfloat16)] if bias else []
    counts = [jax.ShapeDtypeStruct((4,), jnp.int32)] if lengths else []

    def gradients(q: Any, k: Any, v: Any, made: Any, more: Any, counts: Any) -> Any:
        def attend(q: Any, k: Any, v: Any, *more: Any) -> Any:
            padded = {"key_value_seq_lengths": counts[0]} if counts else {}
            return jax.nn.dot_product_attention(q, k, v, *more, implementation="cudnn", **padded, **options)

        output, backward = jax.vjp(attend, q, k, v, *more)
        return output, backward(made)

    with as_on("h100"):
        traced = jax.jit(gradients).trace(query, key, key, query, given, counts)
        lowered = traced.lower(lowering_platforms=("cuda",)).compiler_ir("stablehlo")
    module = parse_bytes(to_bytecode(lowered), make_context())
    return [
        read_call(op)
        for function in functions.all_functions(module)
        for op in functions.walk(function)
        if is_opaque(op)
    ]


def attended(call: KernelCall, *operands: Any) -> list[Any]:
    """The kernel by its documentation; the backward one from the statistics and output that it is given."""
    config, rest = call.config[CONFIG], [jnp.asarray(x) for x in operands]
    backward = "Backward" in call.target
    product = config["bmm2_grad_gemm2_dot_dimension_numbers" if backward else "bmm1_dot_dimension_numbers"]
    positions_first = [int(d) for d in product["lhs_batch_dimensions"]] == [0, 2]

    def heads_first(x: Any) -> Any:
        return x.swapaxes(1, 2) if positions_first else x

    q, k, v = (heads_first(rest.pop(0)) for _ in range(3))
    statistics, gradient = (rest.pop(0), heads_first(rest.pop(0))) if backward else (None, None)
    bias = rest.pop(0) if "Bias" in call.target else 0.0
    output = heads_first(rest.pop(0)) if backward else None
    (b, n, t, _), (_, kv, s, _) = q.shape, k.shape
    assert [int(size) for size in config["intermediate_tensor_shape"]["dimensions"]] == [b, n, t, s]

    wide_k, wide_v = (jnp.repeat(x, n // kv, axis=1) for x in (k, v))
    scores = jnp.einsum("bnth,bnsh->bnts", q, wide_k) * config["fmha_scale"] + bias
    seen = jnp.ones((b, 1, t, s), bool)
    if "CAUSAL" in config["mask_type"]:
        seen = jnp.tril(seen)
    if "PADDING" in config["mask_type"]:
        seen &= jnp.arange(s) < rest[-1][:, None, None, None]
    scores = jnp.where(seen, scores, -1e10)
    if not backward:
        total = jax.scipy.special.logsumexp(scores, axis=-1)
        made = jnp.einsum("bnts,bnsd->bntd", jnp.exp(scores - total[..., None]), wide_v)
        return [made, total, *(None for _ in call.results[2:])]
    weights = jnp.exp(scores - statistics[..., None])
    apart = jnp.einsum("bntd,bnsd->bnts", gradient, wide_v) - (gradient * output).sum(-1)[..., None]
    inner = weights * apart

    def shared(x: Any) -> Any:
        """Summed over the queries' heads that share a key's."""
        return x.reshape(b, kv, n // kv, s, -1).sum(2)

    made = [
        jnp.einsum("bnts,bnsh->bnth", inner, wide_k) * config["fmha_scale"],
        shared(jnp.einsum("bnts,bnth->bnsh", inner, q)) * config["fmha_scale"],
        shared(jnp.einsum("bnts,bntd->bnsd", weights, gradient)),
    ]
    for tensor in call.results[3:]:
        is_bias = "Bias" in call.target and len(made) == 3 and len(tensor.shape) == 4
        alike = tuple(d for d, size in enumerate(tensor.shape) if size == 1)
        made.append(inner.sum(alike, keepdims=True) if is_bias else None)
    return made


def operands_of(forward: KernelCall, backward: KernelCall) -> tuple[list[Any], list[Any]]:
    """Operands of both calls: the second one's statistics and output are the first one's."""
    random = np.random.default_rng(0)

    def normal(shape: tuple[int, ...]) -> Any:
        return 0.5 * random.standard_normal(shape).astype(np.float32)

    floats = [normal(t.shape) for t in forward.operands if "i32" not in t.dtype]
    ints = [t for t in forward.operands if "i32" in t.dtype]
    # Of queries all are there; of keys 3 to 6.
    lengths = [np.full(4, 6, np.int32), np.array([3, 6, 4, 5], np.int32)][: len(ints)]
    given = [*floats, *lengths]
    made, statistics, *_ = attended(forward, *given)
    positions_first = backward.operands[4].shape != made.shape
    output = np.asarray(made.swapaxes(1, 2) if positions_first else made)
    behind = [np.asarray(statistics), normal(output.shape), *floats[3:], output, *lengths]
    return given, [*floats[:3], *behind]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"b", "n", "g", "t"}),
        ({"kv": 4}, {"b", "n", "t"}),
        ({"is_causal": True}, {"b", "n", "g"}),
        ({"lengths": True}, {"b", "n", "g"}),
        ({"lengths": True, "is_causal": True}, {"b", "n", "g"}),
        ({"bias": (1, 4, 6, 6)}, {"b", "n", "g", "t"}),
        ({"bias": (4, 4, 6, 6)}, {"b", "n", "g", "t"}),
        ({"bias": (4, 1, 6, 6), "is_causal": True}, {"b", "n", "g"}),
    ],
    ids=["grouped queries", "heads", "causal", "padded", "padded causal", "bias of heads", "bias", "bias of examples"],
)
def test_attention_in_parts_is_the_whole(options: dict[str, Any], names: set[str]) -> None:
    forward, backward = calls(**options)
    assert "Backward" in backward.target and "Backward" not in forward.target
    given, behind = operands_of(forward, backward)
    assert check_parts(forward, attended, given) == names
    assert check_parts(backward, attended, behind) == names
    # Two products forward; the scores again and four gradients backward; half of each under a causal mask.
    half = 2 if options.get("is_causal") else 1
    assert known(forward)[1].flops == 2 * 2 * 4 * 4 * 6 * 6 * 8 // half
    assert known(backward)[1].flops == 5 * 2 * 4 * 4 * 6 * 6 * 8 // half


def test_packed_sequences_are_split_by_examples() -> None:
    """Offsets of segments are made anew for a device's examples, and nothing is sent."""

    def step(q: Any, k: Any, v: Any, gradient: Any, lengths: Any, offsets: Any) -> Any:
        packed = {"q_seqlen": lengths, "kv_seqlen": lengths, "q_offsets": offsets, "kv_offsets": offsets}

        def attend(q: Any, k: Any, v: Any) -> Any:
            return dot_product_attention(q, k, v, mask_type=MaskType.PADDING_CAUSAL, **packed)

        output, backward = jax.vjp(attend, q, k, v)
        return output, backward(gradient)

    values = jax.ShapeDtypeStruct((16, 128, 8, 64), jnp.bfloat16)
    lengths, offsets = (jax.ShapeDtypeStruct((16, n), jnp.int32) for n in (4, 5))
    inputs = (values, values, values, values, lengths, offsets)
    parallel = rhino.parallelize(step, cluster="dgx-h100:1")
    (use,) = parallel.plan(*inputs).kernels
    assert (use.name, use.count) == ("cudnn-attention-packed", 2)
    assert use.dims[0] and not any(use.dims[1:])
    assert use.flops == (2 + 5) * 2 * 16 * 8 * 128 * 128 * 64 // 2 // 8
    compiled = parallel.compile(*inputs)
    assert not compiled.collectives()
    calls = re.findall(r"= \(bf16\[([\d,]+)\]\S* .*custom_call_target=\"__cudnn\$fmha", compiled.hlo_text())
    assert calls == ["2,8,128,64"] * 2
