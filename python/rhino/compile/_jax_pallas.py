"""Pallas kernels on parts of their arrays: the same kernel over a shorter grid.

Owns reading the grid of a `pallas_call` and making the call again for a device's parts. One of the files that may use
jax's private modules: what a Pallas kernel is made of has no public form. Tried on 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src.pallas import core as pallas_core
from jax._src.pallas import pallas_call
from jax.extend.core import jaxpr_as_fun

from rhino.compile.local_kernels import Mesh, Platform, arithmetic, local_module, local_shape, tensor_of
from rhino.errors import RhinoError, first_line
from rhino.kernels.data import KernelCall, Known
from rhino.kernels.grids import Axis, Blocks, cut_axes, cut_rule, local_grid
from rhino.kernels.registered import registered
from rhino.program.data import Dims

PRIMITIVE = pallas_call.pallas_call_p
lower_whole = pallas_call._pallas_call_lowering


@dataclass(frozen=True, slots=True)
class Blocked:
    """One `pallas_call` of a step: a `rhino.kernels.bodies.KernelBody`.

    Attributes:
      params: of the primitive.
      operands: `ShapeDtypeStruct`s of its inputs.
      axes: what can be done with each axis of its grid.
    """

    name: str
    known: Known
    params: Mapping[str, Any]
    operands: tuple[Any, ...]
    axes: tuple[Axis, ...]
    platform: Platform

    @classmethod
    def of(cls, params: Mapping[str, Any], avals: Sequence[Any], platform: Platform) -> Blocked | None:
        """The kernel of an equation; None for what no plan can split: references, sizes known at run time only.

        Raises:
          RhinoError: it is registered with a rule that does not suit its arrays.
        """
        mapping, (name, place) = params["grid_mapping"], _name(params)
        if not _is_plain(mapping, avals) or params.get("mesh") is not None:
            return None
        arrays = [_blocks(block, len(mapping.grid)) for block in mapping.block_mappings]
        axes = tuple(cut_axes(mapping.grid, arrays, mapping.num_outputs, _read_axes(params["jaxpr"], mapping)))
        call = KernelCall(name, tuple(map(tensor_of, avals)), tuple(map(tensor_of, params["out_avals"])))
        given, estimate = registered(name, place), params.get("cost_estimate")
        flops = estimate.flops if estimate is not None else arithmetic(params["jaxpr"]) * int(np.prod(mapping.grid))
        nbytes = estimate.bytes_accessed if estimate is not None else call.nbytes
        if given is None:
            rule, names, why = cut_rule(axes, arrays, mapping.num_outputs)
            rate = "tensor" if arithmetic(params["jaxpr"]) else "vector"
            known = Known(rule, names, int(flops), int(nbytes), call.operands[0].dtype if avals else "f32", rate, why)
        else:
            rule, names, why = cut_rule(axes, arrays, mapping.num_outputs, given.rule, given.reduction, given.whole)
            known = given.known(call, rule, names, why, int(flops), int(nbytes))
        structs = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals)
        return cls(name, known, params, structs, axes, platform)

    def local(
        self, mesh: Mesh, shapes: Sequence[Sequence[int]], operands: Sequence[Dims], results: Sequence[Dims]
    ) -> bytes:
        """See `KernelBody`."""
        mine = [local_shape(s, d, mesh) for s, d in zip(shapes, operands, strict=True)]
        parts: dict[int, int] = {}
        for axis in self.axes:
            ways = {self.operands[t].shape[d] // mine[t][d] for t, d in axis.places if t < len(mine)}
            if len(ways) > 1:
                raise RhinoError(f"kernel '{self.name}': arrays along axis {axis.axis} of its grid are cut unequally")
            parts[axis.axis] = ways.pop() if ways else 1
        # It talks to no other device: no mesh is needed, and one would not suit kernels traced inside of `shard_map`.
        local = [jax.ShapeDtypeStruct(s, a.dtype) for s, a in zip(mine, self.operands, strict=True)]
        try:
            return local_module(self._cut(parts), local, (), (), (), self.platform)
        except (RuntimeError, NotImplementedError) as error:  # of Pallas, for a GPU that it has no kernels for
            device = self.platform.device
            kind = self.platform.name if device is None else device.device_kind
            raise RhinoError(f"kernel '{self.name}' cannot be lowered for {kind}: {first_line(error)}") from error

    def _cut(self, parts: Mapping[int, int]) -> Callable[..., Any]:
        """The kernel over a grid whose axes are so many times shorter, as a function of arrays."""
        mapping = self.params["grid_mapping"]
        cuts = {place: parts[axis.axis] for axis in self.axes for place in axis.places if parts[axis.axis] > 1}

        def part(t: int, shape: Sequence[int]) -> tuple[int, ...]:
            return tuple(size // cuts.get((t, d), 1) for d, size in enumerate(shape))

        blocks = tuple(
            block.replace(array_aval=block.array_aval.update(shape=part(t, block.array_aval.shape)))
            for t, block in enumerate(mapping.block_mappings)
        )
        inputs = mapping.num_inputs
        made = [a.update(shape=part(inputs + i, a.shape)) for i, a in enumerate(self.params["out_avals"])]
        params = dict(self.params)
        params["grid_mapping"] = mapping.replace(grid=local_grid(mapping.grid, parts), block_mappings=blocks)
        params["out_avals"] = tuple(made)
        return lambda *arrays: tuple(PRIMITIVE.bind(*arrays, **params))


def _name(params: Mapping[str, Any]) -> tuple[str, str]:
    """The kernel's name, what was given as such or that of its function; and where the function stands, "file:line"."""
    name, _, place = str(params["jaxpr"].debug_info.func_src_info).partition(" at ")
    return str(params.get("name") or name), place


def _is_plain(mapping: Any, avals: Sequence[Any]) -> bool:
    """Whether all is known when it is traced: the grid, and where blocks are."""
    return (
        all(isinstance(size, int) for size in mapping.grid)
        and not mapping.num_index_operands
        and len(avals) == mapping.num_inputs
        and all(hasattr(a, "shape") and hasattr(a, "dtype") and not hasattr(a, "inner_aval") for a in avals)
    )


def _blocks(block: Any, rank: int) -> Blocks:
    shape, index = tuple(block.array_aval.shape), block.index_map_jaxpr
    steps = tuple(_step(dim) for dim in block.block_shape)
    return Blocks(shape, steps, _index(index, rank, len(shape)), _followed(index.jaxpr))


def _followed(jaxpr: Any) -> frozenset[int]:
    """The inputs that a jaxpr reads."""
    used = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    return frozenset(i for i, v in enumerate(jaxpr.invars) if id(v) in used)


def _step(dim: Any) -> int:
    """Elements from one block to the next; 0 where blocks have no regular places."""
    if isinstance(dim, pallas_core.Blocked):
        return int(dim.block_size)
    if isinstance(dim, pallas_core.Squeezed | pallas_core.Element):
        return 1
    return dim if isinstance(dim, int) else 0


def _index(jaxpr: Any, rank: int, dims: int) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]:
    """The numbers of blocks at many grid points at once."""

    def index(points: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        if not rank:
            return [np.zeros(points[0].shape if points else (), np.int32)] * dims
        found = jax.vmap(jaxpr_as_fun(jaxpr))(*(np.asarray(p, np.int32) for p in points))
        return [np.broadcast_to(np.asarray(n), points[0].shape) for n in found]

    return index


def _read_axes(jaxpr: Any, mapping: Any) -> frozenset[int]:
    """The axes of the grid whose place or number of programs the kernel reads; those of `jax.vmap` it does not see."""
    own = [axis for axis in range(len(mapping.grid)) if axis not in mapping.vmapped_dims]
    found: set[int] = set()

    def visit(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("program_id", "num_programs"):
                found.add(own[eqn.params["axis"]])
            for value in eqn.params.values():
                for one in value if isinstance(value, tuple | list) else (value,):
                    inner = getattr(one, "jaxpr", one)
                    if hasattr(inner, "eqns"):
                        visit(inner)

    visit(jaxpr)
    return frozenset(found)
