"""Reads an annotated StableHLO module: what `@main` takes and returns, on which mesh.

Owns: `parse` (text or bytecode -> MLIR module) and `read` (MLIR module -> `MainSignature`).
Must not know: jax, devices, targets. It refuses here, with a message, what would make XLA abort the process.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from rhino.dialect.callbacks import callbacks_in
from rhino.dialect.context import make_context, parse_bytes, parse_text
from rhino.dialect.locations import location_text
from rhino.dialect.memories import host_kind
from rhino.errors import JAX_WRITES, RhinoError, first_line
from rhino.program.element_types import numpy_name

_TENSORS = "take and return tensors of numbers, as steps that jax lowers do"

# Per dimension, the mesh axes that split it, the one that varies slowest first.
DimAxes = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """One argument or result of `@main`: global shape, MLIR element type, axes per dimension.

    `sharding` is None where the module has no annotation; for arguments that means replicated. `memory` is jax's kind
    of the memory it is in, "" for the device's.
    """

    shape: tuple[int, ...]
    dtype: str
    sharding: DimAxes | None
    memory: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class MainSignature:
    """What `@main` looks like from outside.

    Attributes:
      axes: (name, size) of the mesh axes, outermost first; an axis that a sharding splits into sub-axes appears
        as its parts. Empty when the module has no mesh, that is, for one device.
      device_ids: the device at each row-major mesh position.
      donated: indices of the arguments whose buffers may be reused.
      hosts: number of hosts named by `rhino.cluster`, if it is there.
    """

    arguments: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...]
    donated: tuple[int, ...]
    hosts: int | None

    @property
    def devices(self) -> int:
        """Number of devices the module is written for."""
        return math.prod(size for _, size in self.axes)


def parse(module: str | bytes) -> ir.Module:
    """Parses MLIR text or bytecode in a context that knows StableHLO, Shardy and their companions."""
    if not module:
        raise RhinoError("the module is empty", f"give the StableHLO of a step; {JAX_WRITES}")
    context = make_context()
    context.emit_error_diagnostics = False  # the exception says it
    try:
        return parse_text(module, context) if isinstance(module, str) else parse_bytes(module, context)
    except (ir.MLIRError, ValueError, UnicodeDecodeError) as error:
        lines = str(error).strip().splitlines() or ["no reason given"]
        detail = next((line.strip() for line in lines if "error:" in line), lines[-1])
        detail = detail.removeprefix("error: ").replace('"-":', "line ")
        raise RhinoError(f"not a valid StableHLO module: {first_line(detail)}", JAX_WRITES) from None


def read(module: ir.Module) -> MainSignature:
    """Reads the signature of an MLIR module that may live in any context (jax's own included)."""
    main = main_function(module)
    _check_calls(module)
    meshes = _meshes(module)
    raw_arguments = [
        _boundary_tensor(type_, attrs, f"argument {i}")
        for i, (type_, attrs) in enumerate(zip(main.type.inputs, attribute_dicts(main, "arg_attrs"), strict=True))
    ]
    raw_results = [
        _boundary_tensor(type_, attrs, f"result {i}")
        for i, (type_, attrs) in enumerate(zip(main.type.results, attribute_dicts(main, "res_attrs"), strict=True))
    ]
    mesh = _single_mesh(meshes)
    shardings = [s for _, _, s in raw_arguments + raw_results if s is not None]
    axes, parts = _split_axes(mesh, shardings)
    sizes = dict(axes)

    def spec(raw: tuple[tuple[int, ...], str, Any], attrs: dict[str, ir.Attribute], what: str) -> TensorSpec:
        shape, dtype, sharding = raw
        return TensorSpec(shape, dtype, _dim_axes(sharding, shape, parts, sizes, what), host_kind(attrs))

    def specs(raw: Sequence[tuple[tuple[int, ...], str, Any]], which: str, what: str) -> tuple[TensorSpec, ...]:
        pairs = enumerate(zip(raw, attribute_dicts(main, which), strict=True))
        return tuple(spec(one, attrs, f"{what} {i}") for i, (one, attrs) in pairs)

    return MainSignature(
        arguments=specs(raw_arguments, "arg_attrs", "argument"),
        results=specs(raw_results, "res_attrs", "result"),
        axes=axes,
        device_ids=_device_ids(mesh, math.prod(sizes.values())),
        donated=tuple(i for i, attrs in enumerate(attribute_dicts(main, "arg_attrs")) if _is_donated(attrs)),
        hosts=_hosts(module),
    )


def main_function(module: ir.Module) -> Any:
    for op in module.body.operations:
        if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main":
            if not op.regions[0].blocks:
                raise RhinoError("the function @main is declared but has no body", "give the module that defines it")
            return op
    raise RhinoError("the module has no function @main", "name the entry function of the step @main")


def _check_calls(module: ir.Module) -> None:
    """Refuses functions that call themselves: XLA inlines every call and would overflow the stack of the process."""
    calls: dict[str, list[str]] = {}
    for function in module.body.operations:
        if function.operation.name == "func.func":
            callees = calls.setdefault(function.attributes["sym_name"].value, [])

            def visit(op: ir.Operation, callees: list[str] = callees) -> ir.WalkResult:
                if op.name == "func.call":
                    callees.append(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
                return ir.WalkResult.ADVANCE

            function.operation.walk(visit)
    # Removing functions that call nothing left, again and again, leaves the cycles and their callers.
    while leaves := [name for name, callees in calls.items() if not any(callee in calls for callee in callees)]:
        for name in leaves:
            del calls[name]
    if calls:
        names = ", ".join("@" + name for name in calls)
        raise RhinoError(f"a function calls itself, directly or through others, among {names}")


def attribute_dicts(main: Any, which: str) -> list[dict[str, ir.Attribute]]:
    """The attributes of each argument ("arg_attrs") or result ("res_attrs"); MLIR omits an array of empty ones."""
    count = len(main.type.inputs if which == "arg_attrs" else main.type.results)
    if which not in main.attributes:
        return [{} for _ in range(count)]
    return [{e.name: e.attr for e in ir.DictAttr(d)} for d in ir.ArrayAttr(main.attributes[which])]


def _is_donated(attrs: dict[str, ir.Attribute]) -> bool:
    return "tf.aliasing_output" in attrs or "jax.buffer_donor" in attrs


def _hosts(module: ir.Module) -> int | None:
    attributes = module.operation.attributes
    if "rhino.cluster" not in attributes:
        return None
    cluster = ir.DictAttr(attributes["rhino.cluster"])
    return int(ir.IntegerAttr(cluster["hosts"]).value) if "hosts" in cluster else None


def _boundary_tensor(type_: ir.Type, attrs: dict[str, ir.Attribute], what: str) -> tuple[tuple[int, ...], str, Any]:
    if not str(type_).startswith("tensor<"):
        raise RhinoError(f"{what} of @main has type {type_}, which is not a tensor", _TENSORS)
    tensor = ir.RankedTensorType(type_)
    if not tensor.has_static_shape:
        raise RhinoError(
            f"{what} of @main has the dynamic shape {type_}", "lower the step for the shapes that it will run with"
        )
    sharding = sdy.TensorShardingAttr(attrs["sdy.sharding"]) if "sdy.sharding" in attrs else None
    if sharding is not None and not str(sharding.mesh_or_ref).startswith("@"):
        raise RhinoError(f"{what} of @main spells out its mesh", "name the mesh with sdy.mesh and refer to it")
    return tuple(tensor.shape), _dtype(tensor.element_type, what), sharding


def _dtype(element: ir.Type, what: str) -> str:
    if numpy_name(str(element)) is None:
        raise RhinoError(f"{what} of @main has element type {element}, which jax has no dtype for", _TENSORS)
    return str(element)


# --- callbacks ------------------------------------------------------------------------------------------------------


def calls_python(bytecode: bytes) -> bool:
    """Whether a module calls Python functions."""
    return _callback(bytecode) is not None


def _callback(bytecode: bytes) -> Any:
    # Looking for the text first spares most modules a walk.
    return next(callbacks_in(parse(bytecode)), None) if b"_python_" in bytecode else None


def refuse_callbacks(bytecode: bytes) -> None:
    """Raises RhinoError if the module calls Python functions: in a file these calls point nowhere."""
    if (found := _callback(bytecode)) is not None:
        raise RhinoError(
            f"{location_text(found.location)}: the module calls a Python function of the process that exported it "
            f"(@{found.attributes['call_target_name'].value}), which is not here",
            "export the step without jax.debug.print and other callbacks, or run it with rhino.parallelize",
        )


# --- the mesh -------------------------------------------------------------------------------------------------------

_Mesh = tuple[tuple[tuple[str, int], ...], tuple[int, ...]]  # axes, device ids (empty = in order)


def _meshes(module: ir.Module) -> dict[str, _Mesh]:
    found = {}
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            mesh = sdy.MeshAttr(op.attributes["mesh"])
            axes = tuple((a.name, int(a.size)) for a in map(sdy.MeshAxisAttr, mesh.axes))
            found[op.attributes["sym_name"].value] = (axes, tuple(int(i) for i in mesh.device_ids))
    return found


def _single_mesh(meshes: dict[str, _Mesh]) -> _Mesh:
    """The one mesh that says how devices are laid out; a mesh without axes (jax writes some) says nothing."""
    real = {mesh: name for name, mesh in meshes.items() if mesh[0]}
    if len(real) > 1:
        names = " and ".join("@" + name for name in real.values())
        raise RhinoError(f"the module has different meshes {names}", "compile one mesh's program at a time")
    return next(iter(real), ((), ()))


def _device_ids(mesh: _Mesh, count: int) -> tuple[int, ...]:
    return mesh[1] or tuple(range(count))


def _split_axes(
    mesh: _Mesh, shardings: Iterable[Any]
) -> tuple[tuple[tuple[str, int], ...], dict[str, list[tuple[int, int, str]]]]:
    """Cuts each axis where some sharding uses a part of it.

    Returns the refined axes, and per original axis its parts as (size of what is outside it, size, name).
    """
    sizes = dict(mesh[0])
    cuts: dict[str, list[int]] = {name: [1, size] for name, size in mesh[0]}
    for sharding in shardings:
        for dim in sharding.dimension_shardings:
            for name, pre, size in _axis_refs(sdy.DimensionShardingAttr(dim), sizes):
                cuts[name] += [pre, pre * size]
    axes: list[tuple[str, int]] = []
    parts: dict[str, list[tuple[int, int, str]]] = {}
    for name, _ in mesh[0]:
        at = sorted(dict.fromkeys(cuts[name]))
        spans = list(itertools.pairwise(at)) or [(1, 1)]
        if any(high % low for low, high in spans):
            raise RhinoError(f"sub-axes of mesh axis {name!r} overlap without nesting")
        parts[name] = [
            (low, high // low, name if len(spans) == 1 else f"{name}:({low}){high // low}") for low, high in spans
        ]
        axes += [(part, size) for _, size, part in parts[name]]
    return tuple(axes), parts


def _axis_refs(dim: Any, sizes: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    """(axis, size of what is outside the used part, size of the used part) for each axis of a dimension."""
    for ref in map(sdy.AxisRefAttr, dim.axes):
        if ref.name not in sizes:
            raise RhinoError(f"a sharding uses axis {ref.name!r}, which the mesh does not have")
        if ref.sub_axis_info is None:
            yield ref.name, 1, sizes[ref.name]
        else:
            info = sdy.SubAxisInfoAttr(ref.sub_axis_info)
            yield ref.name, int(info.pre_size), int(info.size)


def _dim_axes(
    sharding: Any,
    shape: tuple[int, ...],
    parts: dict[str, list[tuple[int, int, str]]],
    sizes: dict[str, int],
    what: str,
) -> DimAxes | None:
    if sharding is None:
        return None
    if sharding.unreduced_axes:
        raise RhinoError(f"{what} of @main is left unreduced over mesh axes", "reduce it inside the step")
    whole = {name: math.prod(size for _, size, _ in spans) for name, spans in parts.items()}
    out = []
    for index, dim in enumerate(map(sdy.DimensionShardingAttr, sharding.dimension_shardings)):
        names = [
            part
            for axis, pre, size in _axis_refs(dim, whole)
            for low, _, part in parts[axis]
            if pre <= low < pre * size or (size == 1 and low == pre)
        ]
        ways = math.prod(sizes[name] for name in names)
        if shape[index] % ways:
            raise RhinoError(
                f"{what} of @main: dim {index} with size {shape[index]} is not divisible by its sharded size {ways}"
            )
        out.append(tuple(names))
    return tuple(out)
