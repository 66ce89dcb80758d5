"""cuDNN's convolutions and norms: part by part against the whole, and compiled for H100 where XLA takes them raw."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhino.compile import compile_module
from rhino.errors import RhinoError
from rhino.kernels.data import KernelCall

from .call_modules import compiled, module_text
from .parts import check_parts, known, refusal, tensor

CONV = "__cudnn$conv"
CONFIG = {"cudnn_conv_backend_config": {"conv_result_scale": 1}}
KINDS = ["Forward", "BackwardInput", "BackwardFilter"]


def conv(x: Any, w: Any, last: bool, stride: int) -> Any:
    layout = ("NHWC", "OHWI", "NHWC") if last else ("NCHW", "OIHW", "NCHW")
    channels, inputs = (x.shape[-1], w.shape[-1]) if last else (x.shape[1], w.shape[1])
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=layout, feature_group_count=channels // inputs,
        precision="highest",
    )  # fmt: skip


def plain(last: bool, stride: int) -> Any:
    """What stands for a call: XLA's own convolution, and its gradients by jax. The window is not in the call."""

    def computed(call: KernelCall, *operands: Any) -> list[Any]:
        a, b = (jnp.asarray(v) for v in operands[:2])
        if call.target == f"{CONV}BackwardInput":
            x = jax.ShapeDtypeStruct(call.results[0].shape, a.dtype)
            (out,) = jax.linear_transpose(lambda x: conv(x, b, last, stride), x)(a)
        elif call.target == f"{CONV}BackwardFilter":
            w = jax.ShapeDtypeStruct(call.results[0].shape, a.dtype)
            (out,) = jax.linear_transpose(lambda w: conv(a, w, last, stride), w)(b)
        else:
            out = conv(a, b, last, stride)
            for other in operands[2:]:
                shape = [1, 1, 1, 1]
                shape[-1 if last else 1] = -1
                out = out + (jnp.reshape(other, shape) if other.ndim == 1 else other)
            out = jnp.maximum(out, 0) if len(operands) > 2 else out
        return [out, None]

    return computed


def call(kind: str, b: int, i: int, o: int, groups: int, last: bool, stride: int = 1, image: int = 7) -> KernelCall:
    side = -(-image // stride)
    x, w, y = (
        tensor("f32", *((first, *spatial, channels) if last else (first, channels, *spatial)))
        for first, channels, spatial in ((b, groups * i, (image, image)), (groups * o, i, (3, 3)),
                                         (b, groups * o, (side, side)))
    )  # fmt: skip
    operands, result = {"BackwardInput": ((y, w), x), "BackwardFilter": ((x, y), w)}.get(kind, ((x, w), y))
    return KernelCall(f"{CONV}{kind}", operands, (result, tensor("ui8", 0)), CONFIG)


@settings(max_examples=8, deadline=None)
@given(
    kind=st.sampled_from(KINDS), b=st.sampled_from([2, 6]), i=st.sampled_from([2, 8]), o=st.sampled_from([4, 6]),
    groups=st.sampled_from([1, 1, 4]), last=st.booleans(), stride=st.sampled_from([1, 2]),
)  # fmt: skip
def test_convolutions_are_split_by_batch_and_channels(
    kind: str, b: int, i: int, o: int, groups: int, last: bool, stride: int
) -> None:
    made = call(kind, b, i, o, groups, last, stride)
    assert check_parts(made, plain(last, stride)) == ({"b", "g"} if groups > 1 else {"b", "i", "o"})
    whole = known(made)[1].whole
    assert whole["s0"] == whole["k1"] == "neighbouring positions are in one window"


def test_the_arithmetic_of_all_three_is_that_of_the_forward_convolution() -> None:
    side = 4  # of images of 7, by strides of 2
    assert {known(call(kind, 2, 8, 6, 1, True, 2))[1].flops for kind in KINDS} == {2 * 2 * side**2 * 6 * 9 * 8}
    assert known(call("Forward", 2, 2, 6, 4, True, 2))[1].flops == 2 * 2 * side**2 * (4 * 6) * 9 * 2


@pytest.mark.parametrize("kind", ["BiasActivationForward", "ForwardGraph"])
def test_what_is_behind_a_convolution_needs_the_whole_sum(kind: str) -> None:
    forward = call(kind, 4, 2, 6, 1, True)
    made = KernelCall(
        forward.target, (*forward.operands, tensor("f32", 6), forward.results[0]), forward.results, CONFIG
    )
    assert check_parts(made, plain(True, 1)) == {"b", "o"}
    assert "behind the convolution" in known(made)[1].whole["i"]


def test_convolutions_that_are_refused() -> None:
    square = KernelCall(f"{CONV}Forward", (tensor("f32", 2, 4, 4), tensor("f32", 4, 4, 4)), (tensor("f32", 2, 4, 4),))
    assert "its channels may be the first or the last dimension" in refusal(square).message
    other = KernelCall(
        f"{CONV}Forward", (tensor("f32", 2, 8, 8, 3), tensor("f32", 3, 3, 3, 5)), (tensor("f32", 2, 8, 8, 5),)
    )
    assert "those of no convolution" in refusal(other).message
    vectors = KernelCall(f"{CONV}Forward", (tensor("i8", 2, 4, 8, 8, 32),) * 2, (tensor("i8", 2, 4, 8, 8, 32),))
    assert "stored in vectors of channels" in refusal(vectors).message
    forward = call("ForwardGraph", 2, 2, 6, 1, True)
    largest = KernelCall(forward.target, forward.operands, (*forward.results, tensor("f32")), CONFIG)
    assert "more results than the convolution" in refusal(largest).message


def test_raw_convolutions_are_refused_before_they_end_the_process() -> None:
    """XLA's compiler aborts on them: in StableHLO they have no window. So none is compiled here."""
    with pytest.raises(RhinoError, match="StableHLO does not say the window"):
        compile_module(module_text(call("Forward", 2, 8, 4, 1, True)), "h100")


def norm(kind: str, b: int, *sizes: int) -> KernelCall:
    x, s, r = (tensor("f32", n, *dims) for n, dims in ((b, sizes), (1, sizes), (b, (1,) * len(sizes))))
    reads, makes = {
        "LAYER_FWD_INFER": ((x, s, s), (x,)), "LAYER_FWD_TRAIN": ((x, s, s), (x, r, r)),
        "LAYER_BWD": ((x, s, x, r, r), (x, s, s)),
    }[kind]  # fmt: skip
    config = {"epsilon": 1e-5, "kind": kind, "algorithm": {"algo_id": "0", "is_cudnn_frontend": True}}
    return KernelCall("__cudnn$norm", reads, (*makes, tensor("ui8", 4096)), {"cudnn_norm_backend_config": config})


def normalised(x: Any, scale: Any, bias: Any) -> Any:
    axes = tuple(range(1, x.ndim))
    mean = x.mean(axes, keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(x - mean).mean(axes, keepdims=True) + 1e-5)
    return (x - mean) * factor * scale + bias, mean, factor


def layer_norm(call: KernelCall, *operands: Any) -> list[Any]:
    kind = call.config["cudnn_norm_backend_config"]["kind"]
    if kind != "LAYER_BWD":
        return [*normalised(*map(jnp.asarray, operands))[: len(call.results) - 1], None]
    x, scale, dy, *_ = map(jnp.asarray, operands)
    _, back = jax.vjp(lambda *given: normalised(*given)[0], x, scale, jnp.zeros_like(scale))
    return [*back(dy), None]


@settings(max_examples=6, deadline=None)
@given(kind=st.sampled_from(["LAYER_FWD_INFER", "LAYER_FWD_TRAIN", "LAYER_BWD"]), b=st.sampled_from([2, 6]),
       sizes=st.sampled_from([(8, 1, 1), (4, 6, 1)]))  # fmt: skip
def test_norms_are_split_by_rows(kind: str, b: int, sizes: tuple[int, ...]) -> None:
    made = norm(kind, b, *sizes)
    assert check_parts(made, layer_norm) == {"b"}
    assert known(made)[1].whole["n1"] == "mean and variance are over all that is normalised"


def test_norms_that_are_refused() -> None:
    made = norm("LAYER_FWD_INFER", 4, 8, 1, 1)
    assert (
        "its configuration has no cudnn_norm_backend_config"
        in refusal(KernelCall(made.target, made.operands, made.results)).message
    )
    rms = {"cudnn_norm_backend_config": {"kind": "RMS"}}
    assert "its kind RMS is not known" in refusal(KernelCall(made.target, made.operands, made.results, rms)).message
    assert "it has 2 operands" in refusal(KernelCall(made.target, made.operands[:2], made.results, made.config)).message


@pytest.mark.parametrize("kind", ["LAYER_FWD_TRAIN", "LAYER_BWD"])
def test_norms_are_compiled_for_h100s_with_their_own_rows(kind: str) -> None:
    executable = compiled(norm(kind, 64, 512, 1, 1), "h100", {"x": 4}, {0: ["x", "", "", ""]})
    (found,) = re.findall(r"= \((f32\[.*?), u8\[4096\]\S*\) custom-call\(.*__cudnn\$norm", executable.hlo_text())
    assert found.startswith("f32[16,512,1,1]")
    # Gradients of scale and bias are sums over devices.
    assert {c.kind for c in executable.collectives()} == ({"all-reduce"} if kind == "LAYER_BWD" else set())


def test_a_rule_that_is_wrong_is_seen() -> None:
    """What the other tests rest on: a rule that adds up where it must not, or splits what belongs together, fails."""
    made = norm("LAYER_FWD_INFER", 4, 8, 1, 1)

    def of_all_rows(call: KernelCall, x: Any, scale: Any, bias: Any) -> list[Any]:
        return [x - x.mean(), None]

    with pytest.raises(AssertionError, match="b, result 0"):
        check_parts(made, of_all_rows)
    product = KernelCall("__cudnn$norm", made.operands, made.results[:1], made.config)
    with pytest.raises(AssertionError):
        check_parts(product, lambda call, x, s, b: [np.cumsum(x, axis=0)])
