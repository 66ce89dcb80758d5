"""A plan's shardings as pytrees over real devices: what plain `jax.jit` takes.

Owns the way from a module's flat annotations to the user's pytrees. Knows nothing of how the plan was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.api_trace import Trace
from rhino.compile.module import TensorSpec, parse, read
from rhino.plan import Plan


@dataclass(frozen=True, slots=True)
class Binding:
    """A plan bound to a function's pytrees, and to devices if there are any.

    Attributes:
      mesh: over the devices; None when the plan is for devices this process does not have.
      flat_in: a sharding (a `PartitionSpec` without devices) per flat argument; the other fields are its pytrees.
    """

    mesh: Mesh | None
    flat_in: tuple[Any, ...]
    in_shardings: tuple[Any, ...]
    keyword_shardings: dict[str, Any]
    out_shardings: Any
    partition_specs: tuple[Any, ...]


def bind(plan: Plan, trace: Trace, devices: Sequence[Any] | None) -> Binding:
    """Bind a plan to the pytrees of a trace and to devices, in the order of the mesh; None for no devices."""
    source = plan.source
    signature = read(parse(source) if isinstance(source, str) else source)
    # One device has no mesh in the module, and jax wants an axis.
    axes = signature.axes or (("device", 1),)
    mesh = None
    if devices is not None:
        grid = np.empty(prod(size for _, size in axes), dtype=object)
        for position, device in enumerate(signature.device_ids):
            grid[position] = devices[device]
        mesh = Mesh(grid.reshape([size for _, size in axes]), tuple(name for name, _ in axes))
    specs_in = [_spec(t, leaf.aval) for t, leaf in zip(signature.arguments, trace.leaves, strict=True)]
    specs_out = [_spec(t, aval) for t, aval in zip(signature.results, trace.jaxpr.out_avals, strict=True)]
    if mesh is None:
        flat_in: list[Any] = specs_in
        flat_out: list[Any] = specs_out
    else:
        flat_in = [NamedSharding(mesh, spec) for spec in specs_in]
        flat_out = [NamedSharding(mesh, spec) for spec in specs_out]
    args, kwargs = jax.tree.unflatten(trace.in_tree, flat_in)
    spec_args, _ = jax.tree.unflatten(trace.in_tree, specs_in)
    return Binding(
        mesh=mesh,
        flat_in=tuple(flat_in),
        in_shardings=args,
        keyword_shardings=kwargs,
        out_shardings=jax.tree.unflatten(trace.out_tree, flat_out),
        partition_specs=spec_args,
    )


def _spec(tensor: TensorSpec, aval: Any) -> PartitionSpec:
    """The spec of a tensor as jax sees it: PRNG keys without the dimensions of their bits, no trailing None."""
    dims = [axes[0] if len(axes) == 1 else axes or None for axes in (tensor.sharding or ())[: len(aval.shape)]]
    while dims and dims[-1] is None:
        dims.pop()
    return PartitionSpec(*dims)
