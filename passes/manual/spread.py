"""A manual computation over a plan's mesh: its collectives in all copies of its own mesh, its body split further.

Owns that rewriting of the operation in place. What splits what is the plan's decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect
from jaxlib.mlir.dialects import stablehlo

from rhino.dialect import functions, sdy
from rhino.dialect.attributes import RhinoKernel
from rhino.dialect.constants import splat
from rhino.graph.data import Dims, Manual, Op, Rule
from rhino.passes.import_graph import number_block
from rhino.passes.kernels.calls import RULE, kernel_of, rule_of
from rhino.passes.manual.collectives import KINDS, Axes, Placed, spread_groups
from rhino.passes.manual.read import NAME, manual_axes, mesh_name
from rhino.search.problem import leading

_PLACE = "stablehlo.partition_id"
_CONSTRAINTS = ("sdy.sharding_constraint", "sdy.reshard")


def spread(op: ir.Operation, record: Op, own: Axes, name: str, mesh: Axes, factors: Sequence[tuple[str, ...]]) -> None:
    """Writes one over another mesh, which has the axes of its own next to each other.

    Args:
      record: the operation in the graph.
      own: the axes of its mesh.
      name, mesh: of the new one.
      factors: the axes that split each factor of its rule, outermost first.
    """
    manual, rule = record.manual, record.rule
    assert manual is not None and rule is not None
    placed = Placed.of(own, mesh)
    assert placed is not None, "the search looks at no other meshes"
    old = mesh_name(op)
    split = {f: axes for f, axes in enumerate(factors) if axes}
    split.update({f: (axis,) for axis, f in manual.taken if f >= 0})
    free = {f: split[f] for f in manual.free if f in split}
    inner = list(functions.walk(op))
    if name != old:
        _rename(inner, old, name)
    with op.context, op.location:
        shardings = [
            [sdy.tensor_sharding(op.context, name, _dims(mapping, split)) for mapping in side]
            for side in (rule.operands, rule.results)
        ]
        op.attributes["in_shardings"] = sdy.per_value(shardings[0], op.context)
        op.attributes["out_shardings"] = sdy.per_value(shardings[1], op.context)
        taken = _manual(op, inner, mesh, {axis for axes in free.values() for axis in axes})
        op.attributes["manual_axes"] = sdy_dialect.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in taken])
        _split_body(op, manual, name, free)
        for at in inner:
            if at.name in KINDS:
                spread_groups(at, placed)
            elif at.name == _PLACE:
                _place(at, name, mesh, placed)


def _dims(mapping: tuple[tuple[int, ...], ...], split: Mapping[int, tuple[str, ...]]) -> Dims:
    return tuple(tuple(axis for f in dim for axis in split.get(f, ())) for dim in mapping)


def _rename(ops: Sequence[ir.Operation], old: str, new: str) -> None:
    """Shardings inside, of constraints and nested computations, over the new mesh."""
    for op in ops:
        for key in ("sharding", sdy.SHARDING, "in_shardings", "out_shardings"):
            if key in op.attributes:
                op.attributes[key] = ir.Attribute.parse(
                    str(op.attributes[key]).replace(f"<@{old},", f"<@{new},"), op.context
                )


def _manual(op: ir.Operation, inner: Sequence[ir.Operation], mesh: Axes, free: set[str]) -> list[str]:
    """The axes of which the body sees one part: what nothing is split over may as well be among them.

    XLA has less to do then. Not where the body says by itself how something lies on other axes.
    """
    mine = set(manual_axes(op))
    says = any(at.name in _CONSTRAINTS or (at.name == NAME and len(at.operands)) for at in inner)
    return [axis for axis, _ in mesh if axis in mine or not (says or axis in free)]


def _split_body(op: ir.Operation, manual: Manual, mesh: str, free: Mapping[int, tuple[str, ...]]) -> None:
    """Says of all that is computed inside how it is split over the axes that the body does not see."""
    values, ops = number_block(op.regions[0].blocks[0])
    axes_of = dict(zip(values, ([free.get(f, ()) for f in dims] for dims in manual.places), strict=True))
    for at in ops:
        if RhinoKernel.name in at.attributes and RULE in at.attributes:
            _split_kernel(at, axes_of)
        dims = [axes_of[v] for v in at.results]
        if not any(axes for per in dims for axes in per) or at.name in (*_CONSTRAINTS, NAME):
            continue
        given = [sdy.tensor_sharding(op.context, mesh, per) for per in dims]
        at.attributes[sdy.SHARDING] = sdy.per_value(given, op.context)


def _split_kernel(op: ir.Operation, axes_of: Mapping[Any, Sequence[tuple[str, ...]]]) -> None:
    rule: Rule = rule_of(op)
    split: list[list[str]] = [[] for _ in rule.factor_sizes]
    tensors = [*zip(op.operands, rule.operands, strict=True), *zip(op.results, rule.results, strict=True)]
    for v, mapping in tensors:
        for axes, dim in zip(axes_of[v], mapping, strict=True):
            if axes:
                split[leading(rule, dim)] = list(axes)
    RhinoKernel.attach(op, {**kernel_of(op), "split": split})


def _place(op: ir.Operation, name: str, mesh: Axes, placed: Placed) -> None:
    """A device's number in the mesh of the computation, from its number in the larger one.

    XLA knows the latter only where all axes are manual: it is asked for in a computation of its own.
    """
    kind = op.results[0].type
    seen = {axis for around in _around(op) for axis in manual_axes(around)}
    rest = [axis for axis, _ in mesh if axis not in seen]
    with op.location, ir.InsertionPoint(op):
        if rest:
            whole = sdy.per_value([sdy.tensor_sharding(op.context, name, ())], op.context)
            none = sdy.per_value([], op.context)
            axes = sdy_dialect.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in rest])
            nested = sdy_dialect.ManualComputationOp([kind], [], none, whole, axes)
            block = nested.regions[0].blocks.append()
            with ir.InsertionPoint(block):
                sdy_dialect.ReturnOp([_own_place(kind, placed)])
            made = nested.results[0]
        else:
            made = _own_place(kind, placed)
    op.results[0].replace_all_uses_with(made)
    op.erase()


def _own_place(kind: Any, placed: Placed) -> Any:
    found = stablehlo.PartitionIdOp().result
    if placed.inner > 1:
        found = stablehlo.DivOp(found, splat(kind, placed.inner)).result
    # Whatever axes are put in front later: those of a pipeline's replicas.
    return stablehlo.RemOp(found, splat(kind, placed.devices)).result


def _around(op: ir.Operation) -> list[ir.Operation]:
    found = []
    at = op.parent
    while at is not None and at.name != "func.func":
        if at.name == NAME:
            found.append(at)
        at = at.parent
    return found


def widen(op: ir.Operation, own: Axes, mesh: Axes, alone: bool) -> None:
    """Writes one over a mesh with further axes around those of its own.

    Args:
      alone: whether it takes those axes too; else it is in a computation that does.
    """
    placed = Placed.of(own, mesh)
    assert placed is not None, "axes are added around those that are there"
    for at in functions.walk(op):
        if at.name in KINDS:
            spread_groups(at, placed)
    if alone:
        mine = set(manual_axes(op)) | {axis for axis, _ in mesh} - {axis for axis, _ in own}
        names = [ir.StringAttr.get(axis, op.context) for axis, _ in mesh if axis in mine]
        op.attributes["manual_axes"] = sdy_dialect.ManualAxesAttr.get(names, context=op.context)
