"""Manual computations over several meshes: those that another one refines are written over that one.

Owns when a mesh refines another, and the rewriting in place. Which mesh a plan has is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect

from rhino.dialect import functions, sdy
from rhino.ir.collectives import KINDS, Axes, Placed, spread_groups
from rhino.ir.manual import NAME, SIDES, manual_axes
from rhino.ir.spread import PLACE, own_place
from rhino.program.operations import CONSTRAINTS


@dataclass(frozen=True, slots=True)
class Refined:
    """A mesh within a finer one: for each of its axes those that it is made of there, and where its devices are."""

    axes: Mapping[str, tuple[str, ...]]
    placed: Placed


def refined(mesh: Axes, finer: Axes) -> Refined | None:
    """None unless each axis is the product of axes that follow each other in the finer mesh, in the same order.

    Of several such places the one where most axes keep their names is taken, then the first.
    """
    found: list[tuple[int, int, Refined]] = []
    sizes = [size for _, size in finer]
    for start in range(len(finer)):
        axes: dict[str, tuple[str, ...]] = {}
        stop = start
        for name, size in mesh:
            first = stop
            while stop < len(finer) and prod(sizes[first:stop]) < size:
                stop += 1
            if prod(sizes[first:stop]) != size:
                break
            axes[name] = tuple(axis for axis, _ in finer[first:stop])
        if len(axes) == len(mesh):
            same = sum((name,) == to for name, to in axes.items())
            placed = Placed(prod(size for _, size in mesh), prod(sizes[:start]), prod(sizes[stop:]))
            found.append((-same, start, Refined(axes, placed)))
    return min(found, key=lambda one: one[:2])[2] if found else None


def finest(meshes: Sequence[Axes]) -> Axes | None:
    """The first mesh that refines all of them, if one does."""
    return next((finer for finer in meshes if all(refined(mesh, finer) for mesh in meshes)), None)


def recast(op: ir.Operation, name: str, to: Refined) -> None:
    """Writes a manual computation, and those in it, over a finer mesh of that name."""
    for at in [op, *functions.walk(op)]:
        if at.name in KINDS:
            spread_groups(at, to.placed)
        elif at.name == PLACE and (to.placed.outer, to.placed.inner) != (1, 1):
            with at.context, at.location, ir.InsertionPoint(at):
                at.results[0].replace_all_uses_with(own_place(at.results[0].type, to.placed))
            at.erase()
        elif at.name == NAME:
            for side in SIDES:
                given = sdy_dialect.TensorShardingPerValueAttr(at.attributes[side]).shardings
                at.attributes[side] = sdy.per_value([_over(s, name, to) for s in given], at.context)
            taken = [ir.StringAttr.get(axis, at.context) for own in manual_axes(at) for axis in to.axes.get(own, ())]
            at.attributes["manual_axes"] = sdy_dialect.ManualAxesAttr.get(taken, context=at.context)


def recast_annotations(main: ir.Operation, old: str, name: str, to: Refined) -> None:
    """The same of the annotations outside of manual computations; those over parts of axes stay as they are."""

    def changed(sharding: ir.Attribute) -> ir.Attribute:
        texts = [axis for axes in (*sdy.dims_of(sharding), sdy.replicated_axes(sharding)) for axis in axes]
        kept = sdy.mesh_of(sharding) != old or any(":" in axis for axis in texts) or sdy.unreduced_axes(sharding)
        return sharding if kept else _over(sharding, name, to)

    for op in functions.walk(main):
        if op.name in CONSTRAINTS:
            op.attributes["sharding"] = changed(op.attributes["sharding"])
    for read, write in (
        (functions.argument_attributes, functions.set_argument_attributes),
        (functions.result_attributes, functions.set_result_attributes),
    ):
        attributes = read(main)
        for given in attributes:
            if sdy.SHARDING in given:
                given[sdy.SHARDING] = changed(given[sdy.SHARDING])
        write(main, attributes)


def _over(sharding: ir.Attribute, name: str, to: Refined) -> ir.Attribute:
    """A sharding over the finer mesh; axes of one device, which it has not, split nothing."""

    def finer(axes: Sequence[str]) -> list[str]:
        return [axis for own in axes for axis in to.axes.get(own, ())]

    opened = [not closed for closed in sdy.closed_dims(sharding)]
    dims = [finer(axes) for axes in sdy.dims_of(sharding)]
    return sdy.tensor_sharding(sharding.context, name, dims, opened, finer(sdy.replicated_axes(sharding)))
