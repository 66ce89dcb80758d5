"""Operations, tensor types, shardings and meshes as people write them; seconds and bytes: in `rhino.machine.units`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from rhino.machine.units import counted, three_digits
from rhino.plan import PlanData, Sharding, Tensor
from rhino.program.element_types import dtype_bytes, type_text


def flops(value: float) -> str:
    """Floating-point operations with three digits: "1.37 TFLOP"."""
    for unit, scale in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if value >= scale:
            return f"{three_digits(value / scale)} {unit}"
    return f"{value:.0f} FLOP"


def percent(value: float, reference: float) -> str:
    """How far `value` is from `reference`: "+4 %"; empty when there is nothing to compare."""
    return f"{round(100 * (value / reference - 1)):+d} %".replace("+0 %", "0 %") if reference > 0 else ""


def tensor_type(tensor: Tensor) -> str:
    """`f32[384,1536]`; of a strided tensor also the shape it is stored in, `f32[384,1536] as [384,3,512]`."""
    stored = f" as [{','.join(map(str, tensor.stored_shape))}]" if tensor.is_strided else ""
    return type_text(tensor.dtype, tensor.shape) + stored


def sharding_text(sharding: Sharding) -> str:
    """`{-, x}`: the axes of each dimension, several as `(x,y)`; a dash for a whole dimension."""
    return "{" + ", ".join(_dim(axes) for axes in sharding) + "}"


def _dim(axes: Sequence[str]) -> str:
    return "-" if not axes else axes[0] if len(axes) == 1 else f"({','.join(axes)})"


def mesh_text(plan: PlanData) -> str:
    """`x=2, y=4`, outermost first; "one device" without a mesh. Those of groups with different ones one by one."""
    return " | ".join(", ".join(f"{a}={n}" for a, n in mesh) or "one device" for mesh in plan.meshes or (plan.mesh,))


def pipeline_text(plan: PlanData) -> str:
    """`4 stages, 8 micro-batches, 1f1b`, with the groups that stages share, and devices of each where that differs."""
    on = f" on {'+'.join(map(str, plan.group_devices))} devices" if plan.meshes else ""
    if plan.groups < plan.stages:
        on = f" on {plan.groups} groups"
    return f"{counted(plan.stages, 'stage')}{on}, {plan.microbatches} micro-batches, {plan.schedule}"


def microbatches_text(plan: PlanData) -> str:
    """Those of one program, and what becomes of what they add up: "16, one after the other, in 8 local sums"."""
    local = f", in {plan.local_sums} local sums" if plan.local_sums > 1 else ""
    return f"{plan.microbatches}, one after the other{local}"


def device_bytes(tensor: Tensor, plan: PlanData) -> int:
    """Bytes of one device's part of a tensor."""
    sizes = dict(plan.meshes[tensor.stages[0]] if plan.meshes and tensor.stages else plan.mesh)
    shards = prod(_axis_size(axis, sizes) for axes in tensor.sharding for axis in axes)
    return int(prod(tensor.shape) * dtype_bytes(tensor.dtype)) // max(shards, 1)


def _axis_size(axis: str, sizes: dict[str, int]) -> int:
    """The shards an axis makes; of a sub-axis `x:(1)2`, the number after the parentheses."""
    return int(axis.rpartition(")")[2]) if ":(" in axis else sizes.get(axis, 1)
