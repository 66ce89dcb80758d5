"""The pass rhino-replicate-fragments: each stage runs as several replicas, which share the micro-batches out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoPlacement
from rhino.dialect.functions import owner_of
from rhino.dialect.mpmd import TOPOLOGY
from rhino.dialect.sdy import add_mesh
from rhino.errors import RhinoError
from rhino.ir.diagnostics import PassError
from rhino.ir.fragments.distributed import distribute
from rhino.ir.fragments.replicated import Replicator, widened_topology
from rhino.ir.manual import mesh_name, outermost
from rhino.ir.meshes import MESH, REPLICA_AXIS, given_mesh
from rhino.ir.spread import widen
from rhino.passes.entry import main_function
from rhino.passes.registry import Pass, PassLog, option, register


@register
class ReplicateFragments(Pass):
    """Run each stage as several replicas: data parallelism whose gradients are summed once a step.

    The replicas of a stage are an axis "replica" in front of its mesh. They hold the same parameters, take different
    micro-batches, and add up gradients of their own: an accumulator gets a leading dimension split over the axis, and
    is summed over it once, after the last micro-batch. The bodies of forward and backward fragments become
    `sdy.manual_computation` over the axis, so that XLA moves nothing between replicas inside them.

    Of what makes `rhino.distributed` results in an update each replica makes a part: gradients are summed in parts,
    optimizer state that is read there is kept in parts, and parameters made of it are gathered (a distributed
    optimizer, ZeRO-1).

    Requires: fragments (`rhino-form-fragments`); a number of micro-batches that `count` divides.

    Ensures: the loop over micro-batches runs 1/count as often, each round with `count` of them; the results are those
    of the module before, up to the order of additions. With count=1 nothing changes.

    Options:
      count: replicas of each stage.

    Example:
      ```mlir
      // rhino-opt --rhino-replicate-fragments=count=2
      %0 = mpmd.for (%acc) {iterations = 8 : ui32} ...
      // becomes, on meshes <["replica"=2, "x"=4]> instead of <["x"=4]>
      %1 = mpmd.for (%spread) {iterations = 4 : ui32} ...   // accumulators are 2x..., split over "replica"
      %2 = mpmd.fragment<mesh="stage0", origin=["update"], stage=0> (%1) ...   // their sums
      ```
    """

    name: ClassVar[str] = "rhino-replicate-fragments"

    count: int = option(1, "replicas of each stage")

    def run(self, module: ir.Module, log: PassLog) -> None:
        """Rewrite in place. Raises PassError where the module has no pipeline or `count` does not divide its rounds."""
        if self.count < 1:
            raise RhinoError(f"count {self.count} is not a number of replicas", "give 1 or more")
        if self.count == 1:
            return
        main = main_function(module, self.name)
        loop = _loop(main)
        rounds = ir.IntegerAttr(loop.attributes["iterations"]).value
        if rounds % self.count:
            message = f"{rounds} micro-batches cannot be shared out to {self.count} replicas"
            raise PassError(loop, message, [f"give a count that divides {rounds}"])
        body = functions.find(module, _call(loop).attributes["callee"].value)
        if body is None:
            raise PassError(loop, "the micro-batch function is not in the module")
        _widen_meshes(module, self.count, body)
        replicator = Replicator(module, self.count)
        with module.context, ir.Location.unknown():
            replicator.body(body, _varying(loop), _indices(loop))
            replicator.loop(main, loop, body)
            shared = distribute(main)
        log.count("fragments", replicator.rewritten)
        log.count("accumulators", len(loop.results))
        log.count("shared-arguments", shared)


def _loop(main: ir.Operation) -> ir.Operation:
    for op in main.regions[0].blocks[0].operations:
        if op.operation.name == "mpmd.for":
            return op.operation
    raise PassError(main, "there is no loop over micro-batches", ["run rhino-form-fragments first"])


def _call(loop: ir.Operation) -> ir.Operation:
    for op in loop.regions[0].blocks[0].operations:
        if op.operation.name == "mpmd.call":
            return op.operation
    raise PassError(loop, "the loop over micro-batches calls no function", ["run rhino-form-fragments first"])


def _varying(loop: ir.Operation) -> list[int]:
    """Positions of the micro-batch function's arguments that the loop carries."""
    carried = list(loop.regions[0].blocks[0].arguments)[:-1]
    return [i for i, v in enumerate(_call(loop).operands) if any(v == c for c in carried)]


def _indices(loop: ir.Operation) -> list[int]:
    """Positions of its arguments that are the number of the micro-batch."""
    made_by = [owner_of(v) for v in _call(loop).operands]
    return [i for i, op in enumerate(made_by) if op is not None and op.name == "mpmd.assign"]


def _widen_meshes(module: ir.Module, count: int, body: ir.Operation) -> None:
    """Puts the axis in front of the mesh, and gives every group as many more devices.

    Args:
      body: the micro-batch function; what is in its fragments will be in computations over the axis.
    """
    axes = given_mesh(module)
    if any(name == REPLICA_AXIS for name, _ in axes):
        raise PassError(module, f'the mesh has an axis "{REPLICA_AXIS}" already', ["replicate fragments once"])
    for op in list(module.body.operations):
        if op.operation.name == "sdy.mesh" and op.attributes["sym_name"].value == MESH:
            op.operation.erase()
    add_mesh(module, MESH, [(REPLICA_AXIS, count), *axes])
    for function in functions.all_functions(module):
        for op in outermost(function):
            if mesh_name(op) == MESH:
                widen(op, axes, [(REPLICA_AXIS, count), *axes], alone=function != body)
        if TOPOLOGY in function.attributes:
            function.attributes[TOPOLOGY] = widened_topology(function, count)
    placement = RhinoPlacement.of(module)
    if placement is not None:
        RhinoPlacement.attach(module, _spread(placement, count))


def _spread(placement: dict[str, Sequence[int]], count: int) -> dict[str, list[int]]:
    """Consecutive devices for each group, in the order of the groups' first devices."""
    found: dict[str, list[int]] = {}
    at = 0
    for name in sorted(placement, key=lambda n: (min(placement[n]), n)):
        width = len(placement[name]) * count
        found[name] = list(range(at, at + width))
        at += width
    return found
