"""What a device computes of a kernel, as a module: a jax function on parts of whole arrays, lowered for a platform.

Owns that lowering, which needs no device, and a count of a function's arithmetic. Knows no kind of kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from rhino.compile.target import DEVICELESS, gpu_description
from rhino.dialect import functions
from rhino.dialect.context import make_context, parse_bytes, to_bytecode
from rhino.kernels.data import KernelTensor, Refused
from rhino.kernels.table import describe
from rhino.program.data import Dims
from rhino.program.element_types import element_type

Mesh = Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Platform:
    """What kernels are lowered for: jax's name of it, "cpu" or "cuda", and the GPU where that need not be here."""

    name: str
    device: AbstractDevice | None = None

    @classmethod
    def of(cls, target: str) -> Platform:
        """That of a target, as `rhino.compile` names it."""
        if target not in DEVICELESS:
            return cls("cpu" if target == "cpu" else "cuda")
        kind, cores = gpu_description(target)
        return cls("cuda", AbstractDevice(device_kind=kind, num_cores=cores, platform="gpu"))

    def here(self) -> Any:
        """While it lasts, jax's lowering takes the GPU for its own: from jax 0.12 on, Pallas asks which it is for."""
        return jax.sharding.use_abstract_mesh(abstract_mesh((), self))


def abstract_mesh(mesh: Mesh, platform: Platform | None = None) -> AbstractMesh:
    """A mesh of so many devices, none of which is there."""
    names = tuple(name for name, _ in mesh)
    return AbstractMesh(
        tuple(size for _, size in mesh), names, axis_types=(AxisType.Auto,) * len(names),
        abstract_device=None if platform is None else platform.device,
    )  # fmt: skip


def spec(dims: Dims) -> PartitionSpec:
    """Axes per dimension as jax writes them."""
    return PartitionSpec(*(axes if len(axes) > 1 else axes[0] if axes else None for axes in dims))


def local_module(
    function: Callable[..., Any],
    operands: Sequence[Any],
    mesh: Mesh,
    reads: Sequence[Dims],
    makes: Sequence[Dims],
    platform: Platform,
) -> bytes:
    """The module of a function of local arrays, as one manual computation over a mesh; without a mesh, of whole ones.

    Args:
      operands: `ShapeDtypeStruct`s of the whole operands.
      reads, makes: axes per dimension of operands and results.
    """
    if mesh:
        over = abstract_mesh(mesh, platform)
        function = jax.shard_map(
            function, mesh=over, in_specs=tuple(map(spec, reads)), out_specs=tuple(map(spec, makes)), check_vma=False
        )
    else:
        over = abstract_mesh((), platform)
    with jax.sharding.use_abstract_mesh(over):
        lowered = jax.jit(function).trace(*operands).lower(lowering_platforms=(platform.name,))
    return to_bytecode(lowered.compiler_ir("stablehlo"))


def local_shape(shape: Sequence[int], dims: Dims, mesh: Mesh) -> tuple[int, ...]:
    """The shape of a device's part."""
    sizes = dict(mesh)
    return tuple(size // prod(sizes[axis] for axis in axes) for size, axes in zip(shape, dims, strict=True))


def tensor_of(aval: Any) -> KernelTensor:
    """An abstract array's shape and MLIR element type."""
    name = np.dtype(aval.dtype).name
    return KernelTensor(tuple(aval.shape), element_type(name) or name)


def is_known(function: Callable[..., Any], operands: Sequence[Any], platform: Platform) -> bool:
    """Whether a function stands for calls that the table of kernels knows: these are then planned as they are."""
    from rhino.ir.kernel_calls import is_opaque, read_call

    traced = jax.jit(function).trace(*operands)
    module = parse_bytes(
        to_bytecode(traced.lower(lowering_platforms=(platform.name,)).compiler_ir("stablehlo")), make_context()
    )
    calls = [op for f in functions.all_functions(module) for op in functions.walk(f) if is_opaque(op)]
    try:
        return bool(calls) and all(describe(read_call(op)) is not None for op in calls)
    except Refused:
        return False


def arithmetic(jaxpr: Any) -> int:
    """Operations of the products in a jaxpr; loops by their length, a kernel's programs each."""
    total = 0
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            total += 2 * prod(eqn.outvars[0].aval.shape) * prod(shape[d] for d in contracted)
        elif name == "conv_general_dilated":
            kernel = eqn.invars[1].aval.shape
            features = kernel[params["dimension_numbers"].rhs_spec[0]]
            total += 2 * prod(eqn.outvars[0].aval.shape) * prod(kernel) // max(1, features)
        else:
            times = params.get("length", 1) if name == "scan" else 1
            grid = getattr(params.get("grid_mapping"), "grid", ())
            times *= prod(size for size in grid if isinstance(size, int))
            inner = [arithmetic(sub) for sub in _inside(params)]
            total += times * (max(inner, default=0) if name == "cond" else sum(inner))
    return total


def _inside(params: Any) -> list[Any]:
    found = []
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns"):
                found.append(one)
            elif hasattr(one, "jaxpr") and hasattr(one.jaxpr, "eqns"):
                found.append(one.jaxpr)
    return found
