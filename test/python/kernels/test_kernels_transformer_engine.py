"""Transformer Engine's calls, part by part against the whole; what stands for them is written from its documentation.

None is compiled: their targets are in Transformer Engine's library, and XLA asks for it when it compiles a call.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.compile import compile_module
from rhino.errors import RhinoError
from rhino.kernels.data import KernelCall, KernelTensor

from .call_modules import module_text
from .parts import arrays, check_parts, known, refusal, tensor

ONE, SCRATCH, NONE = tensor("f32", 1), tensor("ui8", 64), tensor("f32", 0)
SCALED = "where rhino.parallelize traces the step"


def call(name: str, operands: Any, results: Any, **config: Any) -> KernelCall:
    return KernelCall(f"te_{name}_ffi", tuple(operands), tuple(results), config)


def quantized(x: Any, scale: Any, turned: Any, copy: KernelTensor) -> list[Any]:
    """Results of what casts: values, copy, scales, largest value. Rounding is left out."""
    return [x * scale, (turned * scale).reshape(copy.shape) if copy.elements > 1 else None, 1 / scale, None,
            np.abs(x).max().reshape(1)]  # fmt: skip


def turn(x: Any, axis: int) -> Any:
    dims = range(x.ndim)
    return np.transpose(x, (*dims[axis:], *dims[:axis]))


def norm_forward(call: KernelCall, x: Any, scale: Any, gamma: Any, beta: Any) -> list[Any]:
    layer = call.results[5].shape != (1,)
    mean = x.mean(-1) if layer else np.zeros(x.shape[:-1])
    deviation = 1 / np.sqrt(((x - mean[..., None]) ** 2).mean(-1) + 1e-5)
    out = (x - mean[..., None]) * deviation[..., None] * gamma + (beta if layer else 0)
    return [*quantized(out, scale, out, ONE), mean if layer else None, deviation, None]


def norm(rows: tuple[int, ...], h: int, layer: bool, dtype: str = "f32") -> KernelCall:
    x, gamma = tensor("f32", *rows, h), tensor("f32", h)
    results = [
        tensor(dtype, *rows, h),
        ONE,
        ONE,
        ONE,
        ONE,
        tensor("f32", *rows) if layer else ONE,
        tensor("f32", *rows),
    ]
    return call(
        "norm_forward", (x, ONE, gamma, gamma if layer else ONE), (*results, SCRATCH), scaling_mode=0, is_2x=False
    )


@settings(max_examples=8, deadline=None)
@given(rows=st.sampled_from([(4,), (2, 6)]), h=st.sampled_from([4, 8]), layer=st.booleans(),
       dtype=st.sampled_from(["f32", "f8E4M3FN"]))  # fmt: skip
def test_norms_are_split_by_rows(rows: tuple[int, ...], h: int, layer: bool, dtype: str) -> None:
    made = norm(rows, h, layer, dtype)
    assert check_parts(made, norm_forward) == {f"x{i}" for i in range(len(rows))}
    assert known(made)[1].maxima == (2, 3, 4) and known(made)[1].rate == "vector"


@pytest.mark.parametrize("layer", [True, False])
def test_gradients_of_gamma_are_sums_over_rows(layer: bool) -> None:
    x, rows, gamma = tensor("f32", 4, 6, 8), tensor("f32", 4, 6), tensor("f32", 8)
    made = call(
        "norm_backward", (x, x, rows if layer else ONE, rows, gamma), (x, gamma, gamma if layer else ONE, SCRATCH)
    )

    def computed(call: KernelCall, dz: Any, x: Any, mean: Any, deviation: Any, gamma: Any) -> list[Any]:
        centred = x - mean[..., None] if layer else x
        plain = centred * deviation[..., None]
        axes = tuple(range(x.ndim - 1))
        through = dz * gamma
        dx = through - plain * (through * plain).mean(-1, keepdims=True)
        dx = deviation[..., None] * (dx - through.mean(-1, keepdims=True) if layer else dx)
        return [dx, (dz * plain).sum(axes), dz.sum(axes) if layer else None, None]

    assert check_parts(made, computed) == {"x0", "x1"}


def activation(kinds: int, copy: bool) -> KernelCall:
    x, out = tensor("f32", 4, 6, kinds, 8), tensor("f32", 4, 6, 8)
    return call("act_lu", (x, ONE), (out, tensor("f32", 8, 4, 6) if copy else ONE, ONE, ONE, ONE), act_enum=3)


def gated(x: Any) -> Any:
    return jax.nn.silu(x[..., 0, :]) * (x[..., 1, :] if x.shape[-2] > 1 else 1)


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("copy", [False, True])
def test_activations_are_split_but_for_gates(kinds: int, copy: bool) -> None:
    def computed(call: KernelCall, x: Any, scale: Any) -> list[Any]:
        out = np.asarray(gated(x))
        return quantized(out, scale, turn(out, -1), call.results[1])

    assert check_parts(activation(kinds, copy), computed) == {"x0", "x1", "h"}


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_activations_and_their_bias(bias: bool) -> None:
    x, dz = tensor("f32", 4, 6, 2, 8), tensor("f32", 4, 6, 8)
    results = (x, tensor("f32", 2, 8, 4, 6), ONE, ONE, ONE, tensor("f32", 2, 8) if bias else ONE, SCRATCH)
    made = call("dact_dbias_quantize", (dz, x, ONE), results, is_dbias=bias)

    def computed(call: KernelCall, dz: Any, x: Any, scale: Any) -> list[Any]:
        (dx,) = map(np.asarray, jax.vjp(gated, x)[1](dz))
        return [*quantized(dx, scale, turn(dx, -2), call.results[1]), dx.sum((0, 1)) if bias else None, None]

    assert check_parts(made, computed) == {"x0", "x1", "h"}
    assert bool(known(made)[1].rule.reduction) == bias


@settings(max_examples=10, deadline=None)
@given(rows=st.sampled_from([(4,), (2, 6)]), columns=st.sampled_from([(8,), (2, 4)]), bias=st.booleans(),
       copy=st.booleans(), front=st.booleans())  # fmt: skip
def test_casts_are_split_anywhere(
    rows: tuple[int, ...], columns: tuple[int, ...], bias: bool, copy: bool, front: bool
) -> None:
    x = tensor("f32", *rows, *columns)
    axis = len(rows) if front else -len(columns)
    results = (
        tensor("f8E4M3FN", *x.shape), tensor("f8E4M3FN", *columns, *rows) if copy else ONE, ONE, ONE, ONE,
        tensor("f32", *columns) if bias else ONE, SCRATCH,
    )  # fmt: skip
    made = call("dbias_quantize", (x, ONE), results, flatten_axis=axis, is_dbias=bias)

    def computed(call: KernelCall, x: Any, scale: Any) -> list[Any]:
        summed = x.sum(tuple(range(len(rows)))) if bias else None
        return [*quantized(x, scale, turn(x, -len(columns)), call.results[1]), summed, None]

    assert check_parts(made, computed) == {f"x{i}" for i in range(len(x.shape))}


def test_scales_of_blocks_are_refused() -> None:
    x = tensor("bf16", 128, 256)
    values, scales = tensor("f8E4M3FN", 128, 256), tensor("f8E8M0FNU", 128, 8)
    made = call("dbias_quantize", (x, ONE), (values, ONE, scales, ONE, ONE, ONE, SCRATCH), flatten_axis=-1)
    assert refusal(made).message.startswith("its scales are of blocks, padded and in tiles; " + SCALED)
    copied = call("dbias_quantize", (x, ONE), (values, values, ONE, ONE, ONE, ONE, SCRATCH), flatten_axis=-1)
    assert "its second copy has shape [128, 256], which is not its result transposed" in refusal(copied).message


def softmax(kind: str, way: str, shape: tuple[int, ...], mask: tuple[int, ...] = ()) -> KernelCall:
    scores = tensor("bf16", *shape)
    second = [tensor("ui8", *mask)] if mask else [scores] if way == "backward" else []
    return call(f"{kind}_softmax_{way}", (scores, *second), (scores,), scale_factor=0.5)


def softmaxed(call: KernelCall, x: Any, other: Any = None) -> list[Any]:
    if "backward" in call.target:
        return [0.5 * other * (x - (x * other).sum(-1, keepdims=True))]
    if "upper_triang" in call.target:
        x = np.where(np.tril(np.ones(x.shape[-2:])), x, -1e10)
    return [jax.nn.softmax(0.5 * np.where(other > 1, -1e10, x) if other is not None else 0.5 * x)]


@pytest.mark.parametrize(
    ("kind", "way", "mask", "names"),
    [
        ("scaled", "forward", (), {"x0", "h", "q"}),
        ("scaled", "backward", (), {"x0", "h", "q"}),
        ("scaled_masked", "forward", (2, 1, 16, 16), {"x0", "h"}),
        ("scaled_masked", "forward", (1, 1, 16, 16), {"x0", "h"}),
        ("scaled_masked", "backward", (), {"x0", "h", "q"}),
        ("scaled_upper_triang_masked", "forward", (), {"x0", "h"}),
    ],
)
def test_softmaxes_are_split_in_parts_that_the_kernel_can_do(kind: str, way: str, mask: Any, names: set[str]) -> None:
    """Queries of 64 are two blocks or more of 16 rows; those of 16 are one."""
    queries = 16 if mask or "upper" in kind else 64
    made = softmax(kind, way, (2, 32, queries, 16), mask)
    assert check_parts(made, softmaxed) == names
    local = known(made)[1]
    assert local.whole["k"] == "each softmax is over all keys"


def test_heads_that_are_no_multiple_of_four_stay_together() -> None:
    assert check_parts(softmax("scaled", "forward", (2, 6, 64, 16)), softmaxed) == {"q"}


def product(
    second: bool, m: Any, n: Any, k: Any, bias: bool = False, left: bool = False, right: bool = True, **more: Any
) -> KernelCall:
    """lhs [m, k] or, transposed, [k, m]; rhs [n, k] or [k, n]."""
    lhs, rhs = ((*k, *m) if left else (*m, *k)), ((*n, *k) if right else (*k, *n))
    config = {
        "lhs_axis_boundary": len(k) if left else len(m), "rhs_axis_boundary": len(n) if right else len(k),
        "lhs_transposed": left, "rhs_transposed": right, "scaling_mode": 0, "collective_op": 0, **more,
    }  # fmt: skip
    out, b = tensor("f32", *m, *n), tensor("f32", *n) if bias else NONE
    operands = [tensor("f32", *lhs), NONE, tensor("f32", *rhs), NONE, b]
    if second:
        return call("gemm_v2", (*operands, ONE, ONE), (out, SCRATCH), config=config)
    gelu = bool(more.get("fuse_gelu"))
    return call("gemm", (*operands, NONE, ONE, ONE), (out, NONE, out if gelu else NONE, SCRATCH), **config)


def multiplied(call: KernelCall, lhs: Any, _a: Any, rhs: Any, _b: Any, bias: Any, *rest: Any) -> list[Any]:
    config = call.config.get("config", call.config)
    matrices = []
    for x, front in ((lhs, config["lhs_transposed"]), (rhs, not config["rhs_transposed"])):
        boundary = config["lhs_axis_boundary" if x is lhs else "rhs_axis_boundary"]
        flat = x.reshape(prod(x.shape[:boundary]), -1)
        matrices.append(flat.T if front else flat)
    out = (matrices[0] @ matrices[1].T).reshape(call.results[0].shape)
    before = out + (bias if bias.size else 0)
    after = np.asarray(jax.nn.gelu(before)) if config.get("fuse_gelu") else before
    return [after, *([None, before if config.get("fuse_gelu") else None] if len(call.results) > 2 else []), None]


@settings(max_examples=10, deadline=None)
@given(second=st.booleans(), left=st.booleans(), right=st.booleans(), k=st.sampled_from([(8,), (2, 4)]))
def test_products_are_split_and_summed(second: bool, left: bool, right: bool, k: tuple[int, ...]) -> None:
    made = product(second, (2, 4), (6,), k, left=left, right=right)
    assert check_parts(made, multiplied) == {"m0", "m1", "n0", *(f"k{i}" for i in range(len(k)))}
    assert known(made)[1].flops == 2 * 8 * 6 * 8


@pytest.mark.parametrize("more", [{"bias": True}, {"bias": True, "fuse_gelu": True}, {"fuse_gelu": True}])
def test_a_bias_and_gelu_need_the_whole_sum(more: dict[str, Any]) -> None:
    assert check_parts(product(False, (4,), (6,), (8,), **more), multiplied) == {"m0", "n0"}


def test_products_that_are_refused() -> None:
    assert "it sends to other devices" in refusal(product(True, (4,), (6,), (8,), collective_op=1)).message
    assert "a bias' gradient" in refusal(product(False, (4,), (6,), (8,), bias=True, grad=True)).message
    made = product(True, (4,), (6,), (8,))
    blocks = KernelCall(
        made.target, (made.operands[0], tensor("f8E8M0FNU", 128, 4), *made.operands[2:]), made.results, made.config
    )
    assert "its scales are of blocks" in refusal(blocks).message
    assert (
        "as no version of it that is known" in refusal(KernelCall(made.target, made.operands[:3], made.results)).message
    )
    grouped = call("grouped_gemm", (tensor("bf16", 64), tensor("i32", 4)), (tensor("bf16", 64),))
    assert "which rows belong to a group is in its operands; " + SCALED in refusal(grouped).message


def attention(
    backward: bool, layout: int = 9, kv: int = 2, mask: int = 0, bias: tuple[int, ...] = (), offset: bool = False,
    **more: Any,
) -> KernelCall:  # fmt: skip
    b, s, h, d = 4, 6, 4 if layout != 5 else kv, 8
    q, k = tensor("f32", b, s, h, d), tensor("f32", b, s, kv, d)
    parts = {9: (q, k, k), 7: (q, tensor("f32", b, s, 2, kv, d), NONE), 5: (tensor("f32", b, s, 3, h, d), NONE, NONE)}[
        layout
    ]
    i = tensor("f32", *bias) if bias else NONE
    o = [tensor("f32", 1, h, 1, 1)] if offset else [NONE]
    lengths, segments = tensor("i32", b + 1), tensor("i32", b, s)
    behind = [lengths, lengths, tensor("i32", 0), tensor("i32", 0), *[segments] * 4]
    statistics, rng, seed = tensor("f32", b, h, s, 1), tensor("ui32", 1, 4), tensor("ui32", 1, 2)
    config = {
        "qkv_layout": layout, "mask_type": mask, "bias_type": 2 if bias else 0, "softmax_type": int(offset),
        "input_batch": b, "attn_heads": h, "num_gqa_groups": kv, "bias_batch": bias[0] if bias else 0,
        "bias_heads": bias[1] if bias else 0, "window_size_left": -1, **more,
    }  # fmt: skip
    if backward:
        operands = [*parts, i, *o, statistics, rng, q, q, *behind]
        return call("fused_attn_backward", operands, (*parts, i, *o, SCRATCH), **config)
    return call("fused_attn_forward", [*parts, i, *o, seed, *behind], (q, statistics, NONE, rng, SCRATCH), **config)


def attended(call: KernelCall, *operands: Any) -> list[Any]:
    """By its documentation; sizes are taken from the configuration, as the kernel takes them."""
    config, layout = call.config, call.config["qkv_layout"]
    parts, bias, offset = operands[:3], operands[3], operands[4]
    batch, heads, kv = (config[name] for name in ("input_batch", "attn_heads", "num_gqa_groups"))
    assert not bias.size or bias.shape[:2] == (config["bias_batch"], config["bias_heads"])

    def forward(parts: Any, bias: Any, offset: Any) -> Any:
        q, k, v = {
            9: lambda: parts, 7: lambda: (parts[0], parts[1][:, :, 0], parts[1][:, :, 1]),
            5: lambda: tuple(parts[0][:, :, i] for i in range(3)),
        }[layout]()  # fmt: skip
        assert q.shape[0] == batch and q.shape[2] == heads and k.shape[2] == kv
        k, v = (jnp.repeat(x, heads // kv, axis=2) for x in (k, v))
        scores = jnp.einsum("bthd,bshd->bhts", q, k) + (bias if bias.size else 0)
        if config["mask_type"] in (2, 3):
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:])), scores, -1e10)
        total = jnp.exp(scores).sum(-1, keepdims=True) + (jnp.exp(offset) if offset.size else 0)
        return jnp.einsum("bhts,bshd->bthd", jnp.exp(scores) / total, v), jnp.log(total)

    given = (tuple(map(jnp.asarray, parts)), jnp.asarray(bias), jnp.asarray(offset))
    if "forward" in call.target:
        return [*forward(*given), None, None, None]
    gradient = operands[8]
    made, bias_made, offset_made = jax.vjp(lambda *g: forward(*g)[0], *given)[1](jnp.asarray(gradient))
    return [*made, bias_made, offset_made, None]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, {"b", "n", "g"}),
        ({"mask": 2, "layout": 7}, {"b", "n", "g"}),
        ({"layout": 5, "kv": 4}, {"b", "n"}),
        ({"bias": (1, 4, 6, 6)}, {"b", "n", "g"}),
        ({"bias": (4, 1, 6, 6), "mask": 2}, {"b", "n", "g"}),
        ({"offset": True}, {"b", "n", "g"}),
        ({"mask": 3}, {"n", "g"}),
    ],
    ids=["grouped queries", "causal", "one array", "bias of heads", "bias of examples", "offset", "padded"],
)
def test_attention_is_split_by_batch_and_heads(backward: bool, change: dict[str, Any], names: set[str]) -> None:
    made = attention(backward, **change)
    given = [0.3 * x if x.dtype == np.float32 else x for x in arrays(made)]
    assert check_parts(made, attended, given) == names
    found = known(made)[1]
    assert found.whole["t"] and found.rate == ("attention-backward" if backward else "attention")
    half = 2 if change.get("mask") in (2, 3) else 1
    assert found.flops == (5 if backward else 2) * 4 * 4 * 6 * 6 * (8 + 8) // half


def test_attention_that_is_refused() -> None:
    made = attention(False)
    for change, why in (
        ({"qkv_layout": 14}, "packed sequences (thd)"), ({"qkv_layout": 4}, "its layout 4 is not known"),
        ({"bias_type": 3}, "its mask (ALiBi) depends on the number of the head"),
    ):  # fmt: skip
        assert why in refusal(KernelCall(made.target, made.operands, made.results, {**made.config, **change})).message


def test_the_window_of_attention_bounds_its_arithmetic() -> None:
    assert known(attention(False, window_size_left=2))[1].flops == 2 * 4 * 4 * 6 * 3 * (8 + 8)


def test_xla_asks_for_the_library_when_it_compiles() -> None:
    text = module_text(softmax("scaled", "forward", (2, 32, 64, 16)))
    text = re.sub(r'api_version = 2 : i32, backend_config = ".*"', "api_version = 4 : i32, backend_config = {}", text)
    with pytest.raises(RhinoError, match="te_scaled_softmax_forward_ffi"):
        compile_module(text, "h100")
