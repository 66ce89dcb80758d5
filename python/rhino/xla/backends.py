"""What XLA's back ends do otherwise than each other, as far as planning asks: one description per target.

Owns these descriptions. A field that says what XLA does is a behaviour of the catalogue, whose probe checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Literal

# By default XLA combines collectives up to what the GPU's memory allows: whole partial gradients and gathered weights
# then wait for each other. 16 MiB still uses the links well and cut the 1.3 B GPT step on 8 GPUs from 8.0 to 5.7 GiB.
# XLA: collectives-combined, threshold-keeps-apart
# Its latency-hiding scheduler puts off weight gradients, whose inputs then wait: on 128 GPUs the model took 16.4 GiB
# with it and 8.6 GiB without. Collectives still start early and end late: half of them span a matmul.
# XLA: collectives-span-dots
_COMBINE_BYTES = 16 * 2**20
# XLA's scheduler, and its own recomputation, keep temporaries to so many percent of what arguments and results leave of
# four fifths of a device. Where a plan takes more than the default, 95, has room for, values are computed again and
# nothing runs beside computing: Llama 2 7 B with 66 of 80 GiB took a sixth longer, by the timeline. What fits is the
# planner's business, and is looked at afterwards. XLA: memory-limits-overlap
_LIMIT = "xla_gpu_memory_limit_slop_factor"
_NO_LIMIT = 300
# XLA's own, for whoever has to.
LESS_MEMORY: Mapping[str, int] = MappingProxyType({_LIMIT: 95})
_GPU_OPTIONS: Mapping[str, int] = MappingProxyType(
    {
        "xla_gpu_enable_latency_hiding_scheduler": False,
        "xla_gpu_enable_analytical_sol_latency_estimator": False,
        "xla_gpu_all_gather_combine_threshold_bytes": _COMBINE_BYTES,
        "xla_gpu_all_reduce_combine_threshold_bytes": _COMBINE_BYTES,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": _COMBINE_BYTES,
        _LIMIT: _NO_LIMIT,
    }
)
# Beside computing: a sum of gradients waits in a loop for the last gradient that it is combined with. Small ones
# only. XLA: asynchronous-collectives
BESIDE: Mapping[str, int] = MappingProxyType({"xla_gpu_reduce_scatter_combine_threshold_bytes": 4 * 2**20})
# What is combined with others like it.
_COMBINED = ("all-reduce", "all-gather", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class BackEnd:
    """One back end. By default a recent NVIDIA GPU.

    Attributes:
      sums_merge: adds the partial results of devices before it reduces them once.
      sums_leave_loops: reduces what a loop adds up once, behind the loop.
      reduce_scatters: reduces and scatters at once what is summed and kept in parts.
      asynchronous: collectives run beside computing.
      wire_widened: sends floats of two bytes as float32.
      elements_widened: element-wise operations on bfloat16 work in float32, and memory counts it.
      dots_widened: dots of bfloat16 work on float32 copies, and memory counts them.
      rows_fused: kernels compute sums of their rows themselves: a softmax is one.
      costly_kept: a tanh that several results are made of is written, if one of these is summed.
      tanh_kept: an erfc, and a tanh of 16 bits, is written where it is made, for what is made of it behind products.
      wide_tanh_kept: so is a tanh of float32.
      shared_kept: what many kernels read is written, if what it is made of is more.
      fills_read: kernels read a constant fill from memory, if something else updates the same fill in place.
      vectors_multiplied: products with vectors are element-wise, and sums.
      kernels_turned: convolutions read kernels with the output features outermost.
      gathers_turned: what was gathered is turned around for a dot that cannot have that dimension outermost.
      maxima_fused: dots of 16 bits take maxima with a constant, of what they read, themselves.
      siblings_merged: what goes over the same elements is one kernel, with several results.
      sums_in_two: a long sum is two kernels.
      sums_joined: all-reduces that become one copy what they sum into one operand, and out of it.
      refuses_algorithms: refuses a dot's `algorithm` (bfloat16 with float32 sums); it computes the same without.
      gathers_combined: independent all-gathers, and reduce-scatters, become one, as all-reduces do everywhere.
      starts_shared: the tensors of one collective start together, not one after the other.
      options: what Rhino tells XLA, unless the caller says otherwise.
    """

    sums_merge: bool = True
    sums_leave_loops: bool = True
    reduce_scatters: bool = True
    asynchronous: bool = True
    wire_widened: bool = False
    elements_widened: bool = False
    dots_widened: bool = False
    rows_fused: bool = True
    costly_kept: bool = True
    tanh_kept: bool = True
    wide_tanh_kept: bool = True
    shared_kept: bool = True
    fills_read: bool = True
    vectors_multiplied: bool = True
    kernels_turned: bool = True
    gathers_turned: bool = True
    maxima_fused: bool = True
    siblings_merged: bool = True
    sums_in_two: bool = True
    sums_joined: bool = True
    refuses_algorithms: bool = False
    gathers_combined: bool = True
    starts_shared: bool = True
    options: Mapping[str, int] = field(default_factory=lambda: _GPU_OPTIONS, hash=False)

    def combined_bytes(self, kind: str) -> float:
        """Up to how many bytes in all independent collectives of a kind become one; 0 where they do not."""
        if kind not in _COMBINED or not (kind == "all-reduce" or self.gathers_combined):
            return 0.0
        return self.options.get(f"xla_gpu_{kind.replace('-', '_')}_combine_threshold_bytes", inf)

    def told(self, options: Mapping[str, int]) -> BackEnd:
        """The same, where Rhino tells XLA these, too."""
        return replace(self, options={**self.options, **options})

    @property
    def widened(self) -> Literal["nothing", "elements", "dots"]:
        """What works in float32 on bfloat16 values: "dots" and what is element-wise, "elements" only, or "nothing"."""
        return "dots" if self.dots_widened else "elements" if self.elements_widened else "nothing"


_CPU = BackEnd(
    gathers_combined=False,
    starts_shared=False,
    sums_merge=False,
    sums_leave_loops=False,
    reduce_scatters=False,
    asynchronous=False,
    wire_widened=True,
    rows_fused=False,
    costly_kept=False,
    shared_kept=False,
    fills_read=False,
    vectors_multiplied=False,
    kernels_turned=False,
    gathers_turned=False,
    maxima_fused=False,
    siblings_merged=False,
    sums_in_two=False,
    sums_joined=False,
    options=MappingProxyType({}),
)
_GPU = BackEnd()
_AMPERE = replace(_GPU, elements_widened=True)
_VOLTA = replace(
    _AMPERE,
    dots_widened=True,
    rows_fused=False,
    costly_kept=False,
    tanh_kept=False,
    wide_tanh_kept=False,
    maxima_fused=False,
    refuses_algorithms=True,
)
# For what it computes its memory is slower than those of an A100 and an H200.
_H100 = replace(_GPU, wide_tanh_kept=False)

BACK_ENDS: Mapping[str, BackEnd] = MappingProxyType(
    {"cpu": _CPU, "v100": _VOLTA, "a100": _AMPERE, "h100": _H100, "h200": _GPU, "b200": _GPU}
)


def back_end(target: str) -> BackEnd:
    """The description of a target of `rhino compile`; any other, "cuda" too, is taken for a recent GPU."""
    return BACK_ENDS.get(target, _H100)
