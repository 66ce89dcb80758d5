"""Products of cuBLAS and block-scaled ones: part by part against the whole, and as they are written and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.kernels.data import Call
from rhino.kernels.products import read_product

from .parts import check_parts, known, refusal, tensor

GEMM, LT, F8 = "__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"


def product(target: str, operands: Any, results: Any, numbers: Any = ((), (), (1,), (0,)), **config: Any) -> Call:
    sides = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
    given = {f"{side}_dimensions": [str(d) for d in dims] for side, dims in zip(sides, numbers, strict=True) if dims}
    return Call(
        target, tuple(operands), tuple(results), {"gemm_backend_config": {**config, "dot_dimension_numbers": given}}
    )


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def computed(call: Call, *operands: Any) -> list[Any]:
    """What cuBLAS computes, from its documentation."""
    read = read_product(call)
    lhs, rhs = (np.asarray(x, np.float32) for x in operands[:2])
    names: dict[tuple[int, int], str] = {}
    letters = iter("abcdefghijklmnop")
    for left, right in (*zip(read.lhs_batch, read.rhs_batch, strict=True),
                        *zip(read.lhs_contracting, read.rhs_contracting, strict=True)):  # fmt: skip
        names[0, left] = names[1, right] = next(letters)
    for side, x in enumerate((lhs, rhs)):
        for d in range(x.ndim):
            names[side, d] = names.get((side, d)) or next(letters)
    texts = ["".join(names[side, d] for d in range(x.ndim)) for side, x in enumerate((lhs, rhs))]
    batch = "".join(texts[0][d] for d in read.lhs_batch)
    free = ["".join(c for c in t if t not in batch and (c in texts[1 - i]) is False) for i, t in enumerate(texts)]
    out = read.alpha * np.einsum(f"{texts[0]},{texts[1]}->{batch}{free[0]}{free[1]}", lhs, rhs)
    for position in read.scales[:2]:
        out = out * operands[position]
    if read.addend >= 0:
        out = out + read.beta * operands[read.addend]
    if read.bias >= 0:
        out = out + operands[read.bias]
    before, out = out, {"RELU": lambda x: np.maximum(x, 0), "GELU": gelu, "": lambda x: x}[read.function](out)
    found: list[Any] = [out, *[None] * (len(call.results) - 1)]
    if read.before >= 0:
        found[read.before] = before
    if read.largest >= 0:
        found[read.largest] = np.abs(out).max()
    return found


def plain(m: int = 4, n: int = 6, k: int = 8, **config: Any) -> Call:
    return product(
        GEMM, [tensor("f32", m, k), tensor("f32", k, n)], [tensor("f32", m, n), tensor("i8", 4096)], **config
    )


sizes = st.integers(1, 3).map(lambda n: 2 * n)


@settings(max_examples=15, deadline=None)
@given(m=sizes, n=sizes, k=sizes)
def test_all_of_a_product_may_be_split(m: int, n: int, k: int) -> None:
    assert check_parts(plain(m, n, k, alpha_real=0.5), computed) == {"m0", "n0", "k0"}


def test_a_batch_and_contraction_of_two_dimensions() -> None:
    call = product(
        LT, [tensor("f32", 4, 2, 6, 8), tensor("f32", 8, 2, 4, 10)], [tensor("f32", 4, 6, 10), tensor("i8", 64)],
        ((0,), (2,), (1, 3), (1, 0)),
    )  # fmt: skip
    assert check_parts(call, computed) == {"b0", "k0", "k1", "m0", "n0"}
    assert known(call)[1].flops == 2 * 4 * 6 * 10 * 2 * 8


@pytest.mark.parametrize("epilogue", ["BIAS", "RELU", "BIAS_RELU", "GELU", "GELU_AUX", "BIAS_GELU_AUX"])
def test_what_is_fused_behind_a_product_needs_the_whole_sum(epilogue: str) -> None:
    operands = [tensor("f32", 4, 8), tensor("f32", 8, 6), *([tensor("f32", 6)] if "BIAS" in epilogue else [])]
    results = [tensor("f32", 4, 6), *([tensor("f32", 4, 6)] if "AUX" in epilogue else []), tensor("i8", 64)]
    call = product(LT, operands, results, epilogue=epilogue)
    assert check_parts(call, computed) == {"m0", "n0"}
    assert "whole sum" in known(call)[1].whole["k0"]


def test_an_addend_is_added_once() -> None:
    operands = [tensor("f32", 4, 8), tensor("f32", 8, 6), tensor("f32", 4, 6)]
    call = product(LT, operands, [tensor("f32", 4, 6)], beta=2.0)
    assert check_parts(call, computed) == {"m0", "n0"}


def test_the_largest_value_of_fp8_is_that_of_all_parts() -> None:
    scale = tensor("f32")
    operands = [tensor("f8E4M3FN", 4, 8), tensor("f8E4M3FN", 8, 6), scale, scale, scale]
    call = product(F8, operands, [tensor("f8E4M3FN", 4, 6), tensor("f32"), tensor("i8", 64)], damax_output=True)
    assert check_parts(call, computed) == {"m0", "n0"}
    assert known(call)[1].maxima == (1,) and known(call)[1].dtype == "f8"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"alpha_imag": 1.0}, "multiplied by a complex number"),
        ({"epilogue": "SILU"}, "its epilogue SILU is not known"),
        ({"epilogue": "BIAS"}, "it has 2 operands, which is not as many"),
        ({"beta": 1.0}, "it has 2 operands"),
        ({"precision_config": {"algorithm": "ALG_DOT_BF16_BF16_F32_X3"}}, "its algorithm ALG_DOT_BF16_BF16_F32_X3"),
    ],
)
def test_products_that_are_refused(change: dict[str, Any], why: str) -> None:
    assert why in refusal(plain(**change)).message


def test_a_product_whose_result_is_another_is_refused() -> None:
    call = product(GEMM, [tensor("f32", 4, 8), tensor("f32", 8, 6)], [tensor("f32", 6, 4)])
    assert "its result has shape [6, 4], and its operands make [4, 6]" in refusal(call).message


def scaled(target: str, m: int, n: int, k: int, block: int, batch: int = 2, **config: Any) -> Call:
    b = (batch,) if batch else ()
    operands = [tensor("f8E4M3FN", *b, m, k), tensor("f8E4M3FN", *b, n, k)]
    operands += [tensor("f8E8M0FNU", *b, r, k // block) for r in (m, n)]
    results = [tensor("f32", *b, m, n), *([tensor("ui8", 0)] if "cudnn" in target else [])]
    return Call(target, tuple(operands), tuple(results), config)


def block_scaled(call: Call, lhs: Any, rhs: Any, left: Any, right: Any) -> list[Any]:
    block = lhs.shape[-1] // left.shape[-1]
    a, b = (np.repeat(s, block, axis=-1) * x for x, s in ((lhs, left), (rhs, right)))
    return [np.einsum("...mk,...nk->...mn", a, b)]


@settings(max_examples=10, deadline=None)
@given(m=sizes, n=sizes, blocks=sizes, block=st.sampled_from([16, 32]), batch=st.sampled_from([0, 2]))
def test_block_scaled_products_are_split_by_blocks(m: int, n: int, blocks: int, block: int, batch: int) -> None:
    call = scaled("__op$block_scaled_dot", m, n, blocks * block, block, batch)
    assert check_parts(call, block_scaled) == {"m", "n", "k"} | ({"b"} if batch else set())
    assert known(call)[1].whole == {"e": f"{block} elements have one scale"}


def tiled(call: Call, lhs: Any, rhs: Any, left: Any, right: Any) -> list[Any]:
    """cuDNN's: scales in tiles of 128 rows by 4 blocks, of which 32 rows stand side by side."""

    def plain_order(scales: Any) -> Any:
        *b, rows, blocks = scales.shape
        tiles = scales.reshape(*b, rows // 128, blocks // 4, 32, 4, 4)
        return np.moveaxis(tiles, [-3, -2, -4], [-3, -4, -2]).reshape(*b, rows, blocks)

    return [*block_scaled(call, lhs, rhs, plain_order(left), plain_order(right)), None]


def test_cudnns_block_scaled_product_is_split_by_tiles_of_rows() -> None:
    call = scaled("__cudnn$blockScaledDot", 256, 512, 256, 32)
    assert check_parts(call, tiled, atol=1e-2) == {"b", "m", "n"}
    assert "padded to tiles of 128 x 4" in refusal(scaled("__cudnn$blockScaledDot", 192, 512, 256, 32)).message


def test_block_scaled_products_that_are_refused() -> None:
    padded = scaled("__op$block_scaled_dot", 4, 4, 72, 32)
    assert "36 of its elements have one scale, not 16 or 32: scales are padded" in refusal(padded).message
    swapped = scaled("__op$block_scaled_dot", 4, 4, 64, 32, scaled_dot_backend_config={"rhs_batch_dimensions": [1]})
    assert "the batch of its rhs is not in front" in refusal(swapped).message
