"""cuDNN's attention in fp8, as jax traces it: its largest values are those over all devices."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention, fp8_params_keys

import rhino


def _attend(q: Any, k: Any, v: Any, scales: Any, gradient: Any) -> Any:
    def forward(q: Any, k: Any, v: Any) -> Any:
        return dot_product_attention(q, k, v, use_fp8=True, fp8_params=scales)

    (output, *largest), backward = jax.vjp(forward, q, k, v)
    return output, largest, backward((gradient, *map(jnp.ones_like, largest)))


def test_largest_values_are_those_of_all_devices() -> None:
    values = jax.ShapeDtypeStruct((16, 128, 8, 128), jnp.float8_e4m3fn)
    scales = {key: jax.ShapeDtypeStruct((1, 1, 1, 1), jnp.float32) for key in fp8_params_keys}
    step = rhino.parallelize(_attend, cluster="dgx-h100:1")
    plan = step.plan(values, values, values, scales, values)
    assert [use.name for use in plan.kernels] == ["cudnn-attention", "cudnn-attention-backward"]
    assert all(use.dims[0] and not any(use.dims[1:]) for use in plan.kernels)
    compiled = step.compile(values, values, values, scales, values)
    # Two numbers of the output, four of the gradients; of the scores' gradient nothing is asked.
    text = compiled.hlo_text()
    (sent,) = {(c.kind, c.dtype) for c in compiled.collectives()}
    assert sent == ("all-reduce", "f32") and sum(c.bytes for c in compiled.collectives()) < 64
    assert re.search(r"maximum\(", text) and "add(" not in text
    calls = re.findall(r"= \(f8e4m3fn\[([\d,]+)\]\S* .*custom_call_target=\"__cudnn\$fmhaSoftmax\w*F8\"", text)
    assert calls == ["2,8,128,128"] * 2
