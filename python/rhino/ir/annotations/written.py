"""The annotations of a step by its user: which there are, which a plan can keep, and taking out the others.

Owns reading and writing them in @main, in the forms of `forms`. Every one that is not kept is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy as sdy_dialect

from rhino.dialect import functions, sdy
from rhino.dialect.locations import argument_name
from rhino.ir.annotations.forms import over, real_axes
from rhino.ir.collectives import Axes
from rhino.ir.diagnostics import PassLog
from rhino.ir.manual import MANUAL_MESH, around
from rhino.program.data import Dims
from rhino.program.operations import CONSTRAINTS
from rhino.sharding.meshes import axes_text

Meshes = dict[str, Any]
Real = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Given:
    """One annotation.

    Attributes:
      name: what to call it.
      where: its operation; @main for those of arguments and results.
      location: for messages.
      sharding: as it was written.
      shape: of the value.
      slot: the number of the argument or result, -1 for a constraint.
      kind: "constraint", "argument" or "result".
    """

    name: str
    where: ir.Operation
    location: ir.Location
    sharding: ir.Attribute
    shape: tuple[int, ...]
    slot: int
    kind: str

    @property
    def mesh(self) -> str:
        return sdy.mesh_of(self.sharding)


def written(main: ir.Operation) -> list[Given]:
    """All in @main, but for those in manual computations."""
    found = []
    block = main.regions[0].blocks[0]
    for i, (argument, given) in enumerate(zip(block.arguments, functions.argument_attributes(main), strict=True)):
        if sdy.SHARDING in given:
            named = given.get("rhino.name")
            name = f"argument {named.value if named is not None else argument_name(argument, i)}"
            shape = sdy.shape_of(argument.type)
            found.append(Given(name, main, argument.location, given[sdy.SHARDING], shape, i, "argument"))
    for op in functions.walk(main):
        if op.name in CONSTRAINTS and not around(op):
            sharding, shape = op.attributes["sharding"], sdy.shape_of(op.results[0].type)
            found.append(Given("the constraint", op, op.location, sharding, shape, -1, "constraint"))
    types = main.attributes["function_type"].value.results
    for i, given in enumerate(functions.result_attributes(main)):
        if sdy.SHARDING in given:
            sharding, shape = given[sdy.SHARDING], sdy.shape_of(types[i])
            found.append(Given(f"result {i}", main, main.location, sharding, shape, i, "result"))
    return found


@dataclass(slots=True)
class Keeping:
    """What of a step's annotations stays.

    Attributes:
      meshes: the axes of each by name.
      unfit: why a plan cannot have a mesh's axes, and the remedy; None if it can.
    """

    module: ir.Module
    meshes: Meshes
    log: PassLog
    unfit: Callable[[Axes], tuple[str, str] | None]

    def choose(self, found: Sequence[Given], own: Real) -> tuple[Real, list[Given]]:
        """The mesh of which axes the plan's has, and the annotations over it.

        Args:
          own: the mesh of manual computations, which cannot be dropped; empty without any.
        """
        found = [given for given in found if given.shape and real_axes(self.meshes.get(given.mesh) or ())]
        if not any(axes for given in found for axes in sdy.dims_of(self._real(given))):
            return own, []  # they split nothing
        counts: dict[Real, int] = {}
        for given in found:
            axes = real_axes(self.meshes[given.mesh])
            counts[axes] = counts.get(axes, 0) + 1
        if not own:
            for axes in sorted(counts, key=lambda axes: -counts[axes]):
                if (why := self.unfit(axes)) is None:
                    own = axes
                    break
                self._say([g for g in found if real_axes(self.meshes[g.mesh]) == axes], *why)
                found = [g for g in found if real_axes(self.meshes[g.mesh]) != axes]
        kept = []
        for axes in counts:
            those = [given for given in found if real_axes(self.meshes[given.mesh]) == axes]
            if set(axes) <= set(own):
                kept += those
            elif those:
                other = f"over a mesh {axes_text(axes)}, and the plan's has {axes_text(own)}"
                self._say(those, other, "write all for one mesh that has all axes")
        order = {id(given): i for i, given in enumerate(found)}
        return own, sorted(kept, key=lambda given: order[id(given)])

    def _real(self, given: Given) -> ir.Attribute:
        return over(given.sharding, MANUAL_MESH, self.meshes[given.mesh])

    def _say(self, those: Sequence[Given], why: str, remedy: str) -> None:
        """One warning, at the first of several that are dropped for one reason."""
        if not those:
            return
        more = f", and {len(those) - 1} more like it" if len(those) > 1 else ""
        self.log.warning(those[0].location, f"{those[0].name} is not kept{more}: it is {why}", [remedy])

    def sharding(self, given: Given, axes: Axes) -> ir.Attribute | None:
        """An annotation as a plan can keep it; None if it cannot be kept at all."""
        real, sizes = self._real(given), dict(axes)
        dims: list[tuple[str, ...]] = []
        opened = [not closed for closed in sdy.closed_dims(real)]
        if partial := sdy.unreduced_axes(given.sharding):
            why = f"a partial sum over {', '.join(partial)}, which plans leave to XLA"
            self._say([given], why, "constrain the sum instead")
            return None
        for d, (on, size) in enumerate(zip(sdy.dims_of(real), given.shape, strict=True)):
            why = ""
            if parts := [axis for axis in on if ":" in axis]:
                why = f"over a part of an axis in dim {d} ({parts[0]})"
            elif not size or size % prod(sizes[axis] for axis in on):
                why = f"over {axes_text(tuple((axis, sizes[axis]) for axis in on))} in dim {d}, which has size {size}"
            if on and why:
                self._say([given], why, "constrain a dimension that divides, over whole axes")
                on, opened[d] = (), True
            dims.append(on)
        return sdy.tensor_sharding(real.context, MANUAL_MESH, dims, opened, sdy.replicated_axes(real))


def rewrite(main: ir.Operation, found: Sequence[Given], kept: dict[int, ir.Attribute]) -> None:
    """Gives annotations their new shardings, by position in `found`, and takes out the rest.

    The sharding of a result becomes a constraint on what is returned: it says nothing of what that was computed from.
    """
    arguments, results = functions.argument_attributes(main), functions.result_attributes(main)
    block = main.regions[0].blocks[0]
    returned = block.operations[len(block.operations) - 1].operation
    for i, given in enumerate(found):
        sharding = kept.get(i)
        if given.kind == "argument":
            del arguments[given.slot][sdy.SHARDING]
            if sharding is not None:
                arguments[given.slot][sdy.SHARDING] = sharding
        elif given.kind == "result":
            del results[given.slot][sdy.SHARDING]
            value = returned.operands[given.slot]
            if sharding is not None and not _is_so(value, sdy.dims_of(sharding)):
                with main.location, ir.InsertionPoint(returned):
                    returned.operands[given.slot] = sdy_dialect.ShardingConstraintOp(value, sharding).result
        elif sharding is not None:
            given.where.attributes["sharding"] = sharding
        else:
            given.where.results[0].replace_all_uses_with(given.where.operands[0])
            given.where.erase()
    functions.set_argument_attributes(main, arguments)
    functions.set_result_attributes(main, results)


def _is_so(value: Any, dims: Dims) -> bool:
    """Whether a value was just constrained like that."""
    if not isinstance(value, ir.OpResult):
        return False
    op = value.owner.operation
    return op.name in CONSTRAINTS and sdy.dims_of(op.attributes["sharding"]) == dims
