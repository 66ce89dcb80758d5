"""A plan's shardings as pytrees over real devices: what plain `jax.jit` takes.

Owns the way from a module's flat annotations to the user's pytrees. Knows nothing of how the plan was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rhino.api.strided import StoredLayout
from rhino.api.trace import Trace, is_key
from rhino.compile.module import TensorSpec, parse, read
from rhino.plan import PlanData, Sharding
from rhino.plan.strided import common_sharding, original_sharding


@dataclass(frozen=True, slots=True)
class Binding:
    """A plan bound to a function's pytrees, and to devices if there are any.

    Attributes:
      mesh: over the devices; None when the plan is for devices this process does not have.
      flat_in, flat_out: how each flat argument and result is stored: a sharding, a `PartitionSpec` without devices.
      layouts_in, layouts_out: for those stored in another shape than the user's, that shape; both empty without any.
      in_shardings, keyword_shardings, out_shardings, partition_specs: pytrees of shardings of the user's shapes.
    """

    mesh: Mesh | None
    flat_in: tuple[Any, ...]
    flat_out: tuple[Any, ...]
    layouts_in: tuple[StoredLayout | None, ...]
    layouts_out: tuple[StoredLayout | None, ...]
    in_shardings: tuple[Any, ...]
    keyword_shardings: dict[str, Any]
    out_shardings: Any
    partition_specs: tuple[Any, ...]

    @property
    def is_strided(self) -> bool:
        """Whether any argument or result is stored in another shape than the user's."""
        return bool(self.layouts_in)


def bind(plan: PlanData, trace: Trace, devices: Sequence[Any] | None) -> Binding:
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
    sizes = dict(axes)
    results = zip(signature.results, trace.jaxpr.out_avals, strict=True)
    places_in = [_place(t, leaf.aval, mesh, sizes) for t, leaf in zip(signature.arguments, trace.leaves, strict=True)]
    places_out = [_place(t, aval, mesh, sizes) for t, aval in results]
    strided = any(place.layout for place in (*places_in, *places_out))
    args, kwargs = jax.tree.unflatten(trace.in_tree, [place.original for place in places_in])
    spec_args, _ = jax.tree.unflatten(trace.in_tree, [place.spec for place in places_in])
    return Binding(
        mesh=mesh,
        flat_in=tuple(place.stored for place in places_in),
        flat_out=tuple(place.stored for place in places_out),
        layouts_in=tuple(place.layout for place in places_in) if strided else (),
        layouts_out=tuple(place.layout for place in places_out) if strided else (),
        in_shardings=args,
        keyword_shardings=kwargs,
        out_shardings=jax.tree.unflatten(trace.out_tree, [place.original for place in places_out]),
        partition_specs=spec_args,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one tensor goes: the sharding of its stored shape and of the user's, and the latter's spec."""

    stored: Any
    original: Any
    spec: PartitionSpec
    layout: StoredLayout | None


def _place(tensor: TensorSpec, aval: Any, mesh: Mesh | None, sizes: Mapping[str, int]) -> _Place:
    def over(spec: PartitionSpec) -> Any:
        return spec if mesh is None else NamedSharding(mesh, spec, memory_kind=tensor.memory or None)

    if is_key(aval) or tensor.shape == aval.shape:
        # PRNG keys have the dimensions of their bits only in the module.
        spec = _spec((tensor.sharding or ())[: len(aval.shape)])
        return _Place(over(spec), over(spec), spec, None)
    dims = tensor.sharding or tuple(() for _ in tensor.shape)
    spec = _spec(original_sharding(aval.shape, tensor.shape, dims))
    common = common_sharding(aval.shape, tensor.shape, dims, sizes)
    whole = original_sharding(aval.shape, tensor.shape, common)
    layout = StoredLayout(aval, tensor.shape, over(_spec(dims)), over(spec), (over(_spec(common)), over(_spec(whole))))
    return _Place(layout.sharding, layout.original_sharding, spec, layout)


def _spec(sharding: Sharding) -> PartitionSpec:
    """The sharding as jax writes it, without trailing None."""
    dims = [axes[0] if len(axes) == 1 else axes or None for axes in sharding]
    while dims and dims[-1] is None:
        dims.pop()
    return PartitionSpec(*dims)
