"""The pass rhino-partition-kernels: each call becomes a computation of every device on its own parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoKernel
from rhino.dialect.reductions import together
from rhino.ir.collectives import number_channels
from rhino.ir.diagnostics import PassLog
from rhino.ir.kernel_calls import RULE, kernel_of, rule_of
from rhino.ir.layouts import ModuleLayouts, NamedMesh
from rhino.ir.local_kernels.local import Local
from rhino.ir.local_kernels.programs import program_of
from rhino.ir.manual import around, manual_axes, mesh_name
from rhino.passes.registry import Pass, register
from rhino.program.data import Dims, Rule
from rhino.sharding.problem import leading


@register
class PartitionKernels(Pass):
    """Make each described call a manual computation: what one device does with its parts of the operands.

    XLA's partitioner knows nothing of these calls, and would gather all they read. The parts are those of the shardings
    that a plan wrote. What a call sums over parts is summed behind it; what it takes the largest of, inside.

    Requires: calls described by rhino-describe-kernels, and shardings on what they read and make (a plan, or Shardy's
    propagation).

    Ensures: no call with `sdy.sharding_rule` is outside of a manual computation, where the module has a mesh.

    Example:
      ```mlir
      // rhino-opt --rhino-partition-kernels
      %0 = stablehlo.custom_call @f(%x) {rhino.kernel = .., sdy.sharding_rule = .., sdy.sharding =
        #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      // becomes, on a mesh of two devices
      %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>]
          manual_axes={"x"} (%a: tensor<4x4xf32>) {
        %1 = stablehlo.custom_call @f(%a) : (tensor<4x4xf32>) -> tensor<4x4xf32>
        sdy.return %1 : tensor<4x4xf32>
      } : (tensor<8x4xf32>) -> tensor<8x4xf32>
      ```
    """

    name: ClassVar[str] = "rhino-partition-kernels"

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite. Raises PassError at a call whose local program cannot be made."""
        layouts, found = ModuleLayouts(module), False
        for function in functions.all_functions(module):
            calls = [
                op for op in functions.walk(function) if RhinoKernel.name in op.attributes and RULE in op.attributes
            ]
            for op in calls:
                with log.at(op):
                    partition(op, layouts)
                log.count("partitioned")
                found = True
        log.unchanged = not found
        if found:
            number_channels(module)


@dataclass(frozen=True, slots=True)
class _Parts:
    """How a call is split: axes of each factor, over a mesh of which some axes are manual already."""

    mesh: NamedMesh
    rule: Rule
    axes: dict[int, tuple[str, ...]]
    manual: frozenset[str]

    def dims(self, mapping: tuple[tuple[int, ...], ...]) -> Dims:
        """Axes per dimension of an operand or result."""
        return tuple(self.axes.get(leading(self.rule, dim), ()) for dim in mapping)

    def local(self, kind: Any, dims: Dims) -> Any:
        """The type of a device's part."""
        shape = [size // self.mesh.ways(axes) for size, axes in zip(kind.shape, dims, strict=True)]
        return ir.RankedTensorType.get(shape, kind.element_type)

    def summed(self, mapping: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
        """The axes over which devices have parts of a sum, of a result with these factors."""
        has = {f for dim in mapping for f in dim}
        return tuple(axis for f in self.rule.reduction if f not in has for axis in self.axes.get(f, ()))

    @property
    def free(self) -> tuple[str, ...]:
        """The axes that are not manual yet."""
        return tuple(name for name, _ in self.mesh.axes if name not in self.manual)

    @property
    def used(self) -> tuple[str, ...]:
        """All axes that split something, be it by a part of them, in the order of the mesh."""
        split = {axis.split(":")[0] for axes in self.axes.values() for axis in axes}
        return tuple(name for name, _ in self.mesh.axes if name in split)


def partition(op: ir.Operation, layouts: ModuleLayouts) -> None:
    """Replaces one described call, unless there is no mesh to split it over."""
    parts = _parts(op, layouts)
    with op.context, op.location:
        if parts is None or parts.mesh.ways(parts.free) == 1:
            with ir.InsertionPoint(op):
                made = program_of(op)(Local(op, list(op.operands), [r.type for r in op.results], None))
        else:
            made = _manual(op, parts)
    for old, new in zip(op.results, made, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _parts(op: ir.Operation, layouts: ModuleLayouts) -> _Parts | None:
    """How a call is split: as the plan says, else as the shardings of results and operands ask for, results first.

    What the rule refuses is whole. None where there is no mesh.
    """
    rule, split = rule_of(op), kernel_of(op).split
    values = [*op.results, *op.operands]
    known = [layouts.of(v) for v in values]
    name = next((k[0] for k in known if k is not None), "")
    name = name or _mesh_around(op, layouts)
    if not name:
        return None
    found = _Parts(layouts.meshes[name], rule, {}, _manual_axes(op))
    if split is not None:
        found.axes.update({f: axes for f, axes in enumerate(split) if axes})
        return found
    for layout, mapping in zip(known, (*rule.results, *rule.operands), strict=True):
        for factors, axes in zip(mapping, layout[1], strict=True) if layout is not None else ():
            f = leading(rule, factors)
            if axes and f >= 0 and f not in found.axes and _may_split(found, f, axes):
                found.axes[f] = axes
    return found


def _mesh_around(op: ir.Operation, layouts: ModuleLayouts) -> str:
    """The mesh of the manual computation that an operation is in, else the only one that there is."""
    for outer in around(op):
        if mesh_name(outer) in layouts.meshes:
            return mesh_name(outer)
    return next(iter(layouts.meshes)) if len(layouts.meshes) == 1 else ""


def _manual_axes(op: ir.Operation) -> frozenset[str]:
    """The axes of manual computations around an operation: what is inside them are one device's values of these."""
    return frozenset(axis for outer in around(op) for axis in manual_axes(outer))


def _may_split(parts: _Parts, f: int, axes: tuple[str, ...]) -> bool:
    rule = parts.rule
    if f in rule.replicate or f in rule.permutation or rule.factor_sizes[f] % parts.mesh.ways(axes):
        return False
    taken = [axis for used in parts.axes.values() for axis in used] + sorted(parts.manual)
    sizes = dict(parts.mesh.axes)
    if any(sdy.overlap(axis, other, sizes) for axis in axes for other in taken):
        return False
    everywhere = [dim for m in (*rule.operands, *rule.results) for dim in m if f in dim]
    return all(leading(rule, dim) == f for dim in everywhere)


def _manual(op: ir.Operation, parts: _Parts) -> list[Any]:
    """The call as a manual computation in front of it; returns what takes the place of its results."""
    rule, mesh = parts.rule, parts.mesh
    used = [next(iter(r.uses), None) is not None for r in op.results]  # of scratch nobody needs the sum
    maxima = [i for i in kernel_of(op).maxima if used[i]]
    in_dims = [parts.dims(m) for m in rule.operands]
    out_dims = [parts.dims(m) for m in rule.results]
    local_out = [parts.local(r.type, dims) for r, dims in zip(op.results, out_dims, strict=True)]
    summed = [
        parts.summed(m) if r.type.shape and _elements(r.type) and used[i] and i not in maxima else ()
        for i, (r, m) in enumerate(zip(op.results, rule.results, strict=True))
    ]
    # Parts of sums are stacked: one more dimension in front, split over their devices.
    kinds = [_stacked(r.type, mesh.ways(axes)) if axes else r.type for r, axes in zip(op.results, summed, strict=True)]
    dims = [(axes, *d) if axes else d for d, axes in zip(out_dims, summed, strict=True)]
    with ir.InsertionPoint(op):
        places = _places(op, parts)
        read = [*op.operands, *places.values()]
        read_dims = [*in_dims, *((parts.axes[f],) for f in places)]
        manual = sdy_dialect.ManualComputationOp(
            kinds,
            read,
            _per_value(op, mesh, read_dims),
            _per_value(op, mesh, dims),
            sdy_dialect.ManualAxesAttr.get([ir.StringAttr.get(name) for name in parts.free]),
            loc=op.location,
        ).operation
        arguments = [parts.local(v.type, d) for v, d in zip(read, read_dims, strict=True)]
        block = manual.regions[0].blocks.append(*arguments, arg_locs=[op.location] * len(arguments))
    with ir.InsertionPoint(block):
        given = list(block.arguments)
        local = Local(
            op, given[: len(in_dims)], local_out, mesh, tuple(sorted(parts.axes.items())), in_dims, out_dims,
            {f: _first(place) for f, place in zip(places, given[len(in_dims) :], strict=True)},
        )  # fmt: skip
        made = list(program_of(op)(local))
        for i in maxima:
            if parts.used:
                made[i] = _largest(made[i], mesh, parts.used)
        for i, axes in enumerate(summed):
            if axes:
                made[i] = stablehlo.ReshapeOp(_stacked(made[i].type, 1), made[i]).result
        sdy_dialect.ReturnOp(made)
    shardings = sdy.results_of(op)
    with ir.InsertionPoint(op):
        return [_sum(manual.results[i], shardings[i]) if axes else manual.results[i] for i, axes in enumerate(summed)]


def _places(op: ir.Operation, parts: _Parts) -> dict[int, Any]:
    """For each split factor that is ordered the numbers of its elements: split alike, a part begins at its first."""
    i32 = ir.IntegerType.get_signless(32)
    return {
        f: stablehlo.IotaOp(ir.RankedTensorType.get([parts.rule.factor_sizes[f]], i32), 0).result
        for f in kernel_of(op).ordered
        if parts.mesh.ways(parts.axes.get(f, ())) > 1
    }


def _first(places: Any) -> Any:
    one, zero = (ir.DenseI64ArrayAttr.get([n]) for n in (1, 0))
    scalar = ir.RankedTensorType.get([], places.type.element_type)
    return stablehlo.ReshapeOp(scalar, stablehlo.SliceOp(places, zero, one, one).result).result


def _elements(kind: Any) -> int:
    found = 1
    for size in kind.shape:
        found *= size
    return found


def _stacked(kind: Any, count: int) -> Any:
    return ir.RankedTensorType.get([count, *kind.shape], kind.element_type)


def _per_value(op: ir.Operation, mesh: NamedMesh, dims: Sequence[Dims]) -> Any:
    return sdy.per_value([sdy.tensor_sharding(op.context, mesh.name, d) for d in dims], op.context)


def _combine(name: str, scalar: Any, region: Any) -> None:
    """Fills the region of a reduction with one operation on scalars."""
    block = region.blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        made = ir.Operation.create(name, results=[scalar], operands=list(block.arguments))
        stablehlo.ReturnOp([made.results[0]])


def _sum(stacked: Any, sharding: ir.Attribute | None) -> Any:
    """The sum of stacked parts, in the layout that the call's result has."""
    found = together(stacked)
    if sharding is not None:
        found.owner.attributes[sdy.SHARDING] = sdy.per_value([sharding], found.owner.context)
    return found


def _largest(value: Any, mesh: NamedMesh, axes: Sequence[str]) -> Any:
    """The largest of all devices' values, element by element."""
    groups = mesh.groups(axes)
    i64 = ir.IntegerType.get_signless(64)
    shape = ir.RankedTensorType.get([len(groups), len(groups[0])], i64)
    listed = ir.DenseElementsAttr.get([ir.IntegerAttr.get(i64, d) for group in groups for d in group], shape)
    op = stablehlo.AllReduceOp(
        [value.type], [value], listed, channel_handle=stablehlo.ChannelHandle.get(1, 1), use_global_device_ids=True
    ).operation
    _combine("stablehlo.maximum", ir.RankedTensorType.get([], value.type.element_type), op.regions[0])
    return op.results[0]
