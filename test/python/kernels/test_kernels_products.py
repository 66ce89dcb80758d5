"""Products of cuBLAS and block-scaled ones: part by part against the whole, and as they are written and compiled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import rhino
from rhino.cli.main import main
from rhino.compile import compile_module
from rhino.errors import RhinoError
from rhino.kernels.data import KernelCall
from rhino.kernels.products import read_product

from .call_modules import compiled, module_text, run
from .parts import arrays, check_parts, known, refusal, tensor

GEMM, LT, F8 = "__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"


def product(target: str, operands: Any, results: Any, numbers: Any = ((), (), (1,), (0,)), **config: Any) -> KernelCall:
    sides = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
    given = {f"{side}_dimensions": [str(d) for d in dims] for side, dims in zip(sides, numbers, strict=True) if dims}
    return KernelCall(
        target, tuple(operands), tuple(results), {"gemm_backend_config": {**config, "dot_dimension_numbers": given}}
    )


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def computed(call: KernelCall, *operands: Any) -> list[Any]:
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


def plain(m: int = 4, n: int = 6, k: int = 8, **config: Any) -> KernelCall:
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


def scaled(target: str, m: int, n: int, k: int, block: int, batch: int = 2, **config: Any) -> KernelCall:
    b = (batch,) if batch else ()
    operands = [tensor("f8E4M3FN", *b, m, k), tensor("f8E4M3FN", *b, n, k)]
    operands += [tensor("f8E8M0FNU", *b, r, k // block) for r in (m, n)]
    results = [tensor("f32", *b, m, n), *([tensor("ui8", 0)] if "cudnn" in target else [])]
    return KernelCall(target, tuple(operands), tuple(results), config)


def block_scaled(call: KernelCall, lhs: Any, rhs: Any, left: Any, right: Any) -> list[Any]:
    block = lhs.shape[-1] // left.shape[-1]
    a, b = (np.repeat(s, block, axis=-1) * x for x, s in ((lhs, left), (rhs, right)))
    return [np.einsum("...mk,...nk->...mn", a, b)]


@settings(max_examples=10, deadline=None)
@given(m=sizes, n=sizes, blocks=sizes, block=st.sampled_from([16, 32]), batch=st.sampled_from([0, 2]))
def test_block_scaled_products_are_split_by_blocks(m: int, n: int, blocks: int, block: int, batch: int) -> None:
    call = scaled("__op$block_scaled_dot", m, n, blocks * block, block, batch)
    assert check_parts(call, block_scaled) == {"m", "n", "k"} | ({"b"} if batch else set())
    assert known(call)[1].whole == {"e": f"{block} elements have one scale"}


def tiled(call: KernelCall, lhs: Any, rhs: Any, left: Any, right: Any) -> list[Any]:
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


@pytest.mark.parametrize("epilogue", ["DEFAULT", "BIAS", "BIAS_RELU", "BIAS_GELU", "BIAS_GELU_AUX"])
def test_what_is_written_for_a_product_computes_it_on_four_devices(epilogue: str) -> None:
    """XLA for CPUs runs what stands for the call; the contraction is split where that is a sum."""
    operands = [tensor("f32", 4, 8), tensor("f32", 8, 6), *([tensor("f32", 6)] if "BIAS" in epilogue else [])]
    results = [tensor("f32", 4, 6), *([tensor("f32", 4, 6)] if "AUX" in epilogue else []), tensor("i8", 64)]
    call = product(LT, operands, results, epilogue=epilogue, alpha_real=0.5)
    given = arrays(call)
    made = run(call, given, {"x": 2, "y": 2}, {0: ["x", "y"]})
    for ours, wanted in zip(made, computed(call, *given), strict=True):
        if wanted is not None:
            np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_fp8_products_are_scaled_and_saturated() -> None:
    scale, f8 = tensor("f32"), "f8E4M3FN"
    operands = [tensor(f8, 4, 8), tensor(f8, 6, 8), scale, scale, scale]
    results = [tensor(f8, 4, 6), tensor("f32"), tensor("i8", 64)]
    call = product(F8, operands, results, ((), (), (1,), (1,)), damax_output=True)
    given = [np.asarray(x).astype(ml_dtypes.float8_e4m3fn) for x in arrays(call)[:2]]
    factors = [np.float32(2.0), np.float32(0.5), np.float32(100.0)]
    out, largest, _ = run(call, [*given, *factors], {"x": 2, "y": 2}, {0: ["x", ""], 1: ["y", ""]})
    exact = given[0].astype(np.float32) @ given[1].astype(np.float32).T
    assert np.abs(exact).max() * 100 > 448  # some are too large
    np.testing.assert_allclose(largest, np.abs(exact).max(), rtol=1e-6)
    rounded = np.clip(100 * exact, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(out, rounded.astype(np.float32))


def test_xla_makes_cublas_calls_of_local_products_for_h100s() -> None:
    """Columns over x, what is contracted over y: one sum, of the result; XLA chooses the kernel."""
    call = product(GEMM, [tensor("bf16", 512, 1024), tensor("bf16", 1024, 256)], [tensor("bf16", 512, 256)])
    executable = compiled(call, "h100", {"x": 2, "y": 2}, {0: ["", "y"], 1: ["y", "x"]})
    (summed,) = executable.collectives()
    assert summed.kind == "all-reduce"
    assert re.search(r"bf16\[512,512\]\S* parameter", executable.hlo_text())
    assert re.search(r"bf16\[512,128\]", executable.hlo_text())


def test_raw_calls_of_xlas_own_are_refused_before_they_end_the_process() -> None:
    for call in (plain(), product(LT, [tensor("f32", 4, 8), tensor("f32", 8, 6)], [tensor("f32", 4, 6)])):
        with pytest.raises(RhinoError, match="it makes such calls of products itself"):
            compile_module(module_text(call), "h100")


@pytest.mark.parametrize(("target", "kernel"), [("h100", "__cublas"), ("b200", "__cudnn$blockScaledDot")])
def test_block_scaled_products_are_compiled_with_local_shapes(target: str, kernel: str) -> None:
    """On Blackwell one kernel; Hopper has none, where XLA multiplies by the scales first."""
    call = scaled("__op$block_scaled_dot", 512, 256, 1024, 32)
    executable = compiled(call, target, {"x": 2, "y": 2}, {0: ["", "x", "y"], 1: ["", "", "y"], 2: ["", "x", "y"]})
    assert {c.kind for c in executable.collectives()} == {"all-reduce"}
    assert kernel in executable.hlo_text() or "dot" in executable.hlo_text()
    assert re.search(r"f8e4m3fn\[2,256,512\]", executable.hlo_text())
    assert re.search(r"f8e8m0fnu\[2,256,16\]", executable.hlo_text())


def test_cudnns_own_block_scaled_call_is_compiled_for_b200() -> None:
    call = scaled("__cudnn$blockScaledDot", 256, 256, 512, 32)
    executable = compiled(call, "b200", {"x": 2}, {0: ["", "x", ""]})
    assert re.search(r"f32\[2,128,256\]\S*, u8\[0\]\S*\) custom-call\(.*__cudnn\$blockScaledDot", executable.hlo_text())
    assert not executable.collectives()


def test_jaxs_scaled_matmul_is_split_in_a_traced_step() -> None:
    """jax has a partitioner of its own for it; the table's rule is asked first, which knows what it costs."""
    f8 = jax.ShapeDtypeStruct((4, 512, 1024), jnp.float8_e4m3fn)
    scale = jax.ShapeDtypeStruct((4, 512, 32), jnp.float8_e8m0fnu)
    step = rhino.parallelize(jax.nn.scaled_matmul, cluster="dgx-h100:1")
    (use,) = step.plan(f8, f8, scale, scale).kernels
    assert (use.name, use.replicated) == ("block-scaled-product", "") and any(use.dims)
    assert use.flops * 8 == 2 * 4 * 512 * 512 * 1024


def planned(text: str, path: Path) -> rhino.Plan:
    path.write_text(text)
    assert main(["plan", str(path), "--cluster", "dgx-h100:1", "-q", "-o", str(path.with_suffix(".out"))]) == 0
    return rhino.Plan.from_module(path.with_suffix(".out").read_text())


def test_a_file_of_cublas_calls_is_planned_as_the_products_that_they_are(tmp_path: Path) -> None:
    """What is contracted is much longer than the rest: its parts are added up, and the call's scratch is not."""
    text = """
    func.func @main(%a: tensor<3x4194304xbf16> {rhino.role = "param"},
                    %w: tensor<4194304x3xbf16> {rhino.role = "param"}) -> tensor<3x3xbf16> {
      %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
        : (tensor<3x4194304xbf16>, tensor<4194304x3xbf16>) -> tensor<3x3xbf16>
      return %0 : tensor<3x3xbf16>
    }
    """
    call = product(GEMM, [tensor("bf16", 3, 4194304), tensor("bf16", 4194304, 3)], [tensor("bf16", 3, 3)])
    config = json.dumps(json.dumps(call.config))
    raw = text.replace("stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]",
                       f"stablehlo.custom_call @{GEMM}(%a, %w) {{backend_config = {config}}}")  # fmt: skip
    raw = raw.replace(
        "-> tensor<3x3xbf16>\n      return %0", "-> (tensor<3x3xbf16>, tensor<1048576xi8>)\n      return %0"
    )
    raw = raw.replace("%0 = ", "%0:2 = ").replace("return %0 :", "return %0#0 :")
    ours, theirs = planned(raw, tmp_path / "raw.mlir"), planned(text, tmp_path / "plain.mlir")
    (use,) = ours.kernels
    assert use.dims[1] and not use.dims[0]
    assert ours.predicted.comm_bytes == theirs.predicted.comm_bytes
    assert set(ours.predicted.comm_bytes) == {"all-reduce"}
    assert ours.predicted.step_time_s == pytest.approx(theirs.predicted.step_time_s, rel=0.03)
    executable = compile_module(str(ours.module), "h100")
    assert sum(c.bytes for c in executable.collectives()) == sum(ours.predicted.comm_bytes.values())


def test_laxs_scaled_dot_is_planned_as_what_it_is_composed_of() -> None:
    """A composite, which XLA takes on one device only."""
    numbers = (((2,), (2,)), ((0,), (0,)))

    def step(a: Any, b: Any, s: Any, t: Any) -> Any:
        return lax.scaled_dot(
            a, b, lhs_scale=s, rhs_scale=t, dimension_numbers=numbers, preferred_element_type=jnp.float32
        )

    f8 = jax.ShapeDtypeStruct((8, 256, 512), jnp.float8_e4m3fn)
    scale = jax.ShapeDtypeStruct((8, 256, 16), jnp.float8_e8m0fnu)
    parallel = rhino.parallelize(step, cluster="dgx-h100:1")
    assert "stablehlo.dot_general" in str(parallel.plan(f8, f8, scale, scale).module)
    assert not parallel.compile(f8, f8, scale, scale).collectives()
