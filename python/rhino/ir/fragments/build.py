"""From a fragment plan to IR: @microbatch and a new @main of mpmd fragments, transfers and one loop.

Owns the building. What is in which fragment is decided in `fragment_plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, mpmd, stablehlo

from rhino.dialect import functions, sdy
from rhino.dialect import mpmd as mpmd_types
from rhino.dialect.attributes import RhinoArgument, RhinoLayouts, RhinoPin, RhinoPlacement, RhinoStage, RhinoStrided
from rhino.dialect.constants import splat
from rhino.ir.fragments.data import Export, FragmentDraft, FragmentPlan
from rhino.ir.fragments.layouts import Dims
from rhino.ir.fragments.meshes import keep_mesh
from rhino.ir.fragments.staged_program import Source, StagedOp, StepInput
from rhino.pipeline.schedule.tasks import IN_LOOP
from rhino.program.operations import CONSTRAINTS

MICROBATCH = "microbatch"
_TRANSPOSED = ("backward", "weight")
_ALIAS = "tf.aliasing_output"


def build_fragments(module: ir.Module, plan: FragmentPlan) -> None:
    """Replace @main by its fragments, and place the groups one after the other on the devices of the cluster."""
    with module.context, ir.Location.unknown():
        _FragmentBuilder(plan).build()
        plan.program.main.erase()
    placement, first = {}, 0
    for g in range(plan.groups):
        size = prod(count for _, count in plan.layouts.meshes.axes_of(g))
        placement[group_name(g)] = list(range(first, first + size))
        first += size
    RhinoPlacement.attach(module, placement)


def group_name(group: int) -> str:
    """The name of the mesh of a device group."""
    return f"stage{group}"


class _FragmentBuilder:
    """State of one rewriting. `made` has the values on their own group, `sent` what each stage received."""

    def __init__(self, plan: FragmentPlan) -> None:
        self.plan, self.program, self.layouts, self.meshes = plan, plan.program, plan.layouts, plan.layouts.meshes
        self.types: dict[tuple[int, ir.Type, Dims | None], ir.Type] = {}
        self.made: dict[Export, Any] = {}
        self.inputs: dict[tuple[Source, int], Any] = {}
        self.sent: dict[tuple[Source, int], Any] = {}
        self.counters: dict[int, Any] = {}
        self.captured: dict[Any, Any] = {}
        axes = {group_name(g): self.meshes.axes_of(g) or [("x", 1)] for g in range(plan.groups)}
        self.topology = mpmd_types.make_topology(axes, mesh_context())
        self.counter_type = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))

    def build(self) -> None:
        plan, old = self.plan, self.program.main
        sources = sorted(plan.owners, key=lambda source: (source.index, source.slice))
        arguments = [(source, group) for source in sources for group in sorted(plan.copies[source])]
        kinds = [self.usual_type(s, group) for s, group in arguments]
        results = [self.found_type(r.export, plan.group(r.stage)) for r in plan.results]
        main = func.FuncOp("main", (kinds, results), ip=ir.InsertionPoint(old), loc=old.location).operation
        main.attributes[mpmd_types.TOPOLOGY] = self.topology
        self.attributes(main, arguments, kinds, results)
        places = [self.program.arguments[source.index].location for source, _ in arguments]
        block = main.regions[0].blocks.append(*kinds, arg_locs=places)
        self.inputs = dict(zip(arguments, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            self.send(sources)
            self.fragments("prepare")
            self.loop(main)
            self.fragments("update")
            func.ReturnOp([self.find(r.export, r.stage) for r in plan.results])

    def attributes(
        self, main: Any, arguments: Sequence[tuple[StepInput, int]], kinds: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """Give arguments and results the attributes they had, and which of the original ones they are."""
        given = functions.argument_attributes(self.program.main)
        position = {(r.index, r.rows): n for n, r in enumerate(self.plan.results)}
        written = []
        for (source, _), kind in zip(arguments, kinds, strict=True):
            attributes = self.piece_attributes(given[source.index], source.index, source.slice)
            if _ALIAS in attributes:
                alias = ir.IntegerAttr(attributes.pop(_ALIAS)).value
                result = position.get((alias, source.slice), -1)
                if result >= 0 and results[result] == kind:
                    attributes[_ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
                else:  # its buffer is given away all the same
                    attributes["jax.buffer_donor"] = ir.BoolAttr.get(True)
            written.append(attributes)
        functions.set_argument_attributes(main, written)
        given = functions.result_attributes(self.program.main)
        functions.set_result_attributes(
            main, [self.piece_attributes(given[r.index], r.index, r.rows) for r in self.plan.results]
        )

    def piece_attributes(self, given: dict[str, Any], index: int, rows: tuple[tuple[int, int], ...]) -> dict[str, Any]:
        """The attributes of an argument or result, or of rows of it; its layout is in its type."""
        told = sdy.SHARDING, RhinoLayouts.name, RhinoPin.name
        kept = {name: attribute for name, attribute in given.items() if name not in told}
        which: dict[str, Any] = {"index": index}
        if rows:
            which["slice"] = rows
            if RhinoStrided.name in kept:
                strided = RhinoStrided.from_attr(kept[RhinoStrided.name])
                # No dimension up to the one that was cut is split into factors.
                strided["shape"] = [*(stop - start for start, stop in rows), *strided["shape"][len(rows) :]]
                kept[RhinoStrided.name] = RhinoStrided.to_attr(strided, mesh_context())
        kept[RhinoArgument.name] = RhinoArgument.to_attr(which, mesh_context())
        return kept

    # Types.

    def tensor(self, source: Source) -> ir.Type:
        """The plain type of a value."""
        if not isinstance(source, StepInput):
            return self.counter_type if source == self.program.loop.counter else source.type
        whole = ir.RankedTensorType(self.program.arguments[source.index].type)
        return ir.RankedTensorType.get(source.shape(whole.shape), whole.element_type) if source.slice else whole

    def type(self, group: int, tensor: ir.Type, dims: Dims | None) -> ir.Type:
        """The type of a tensor on a group."""
        key = (group, tensor, dims)
        if key not in self.types:
            context = mesh_context()
            sharding = None if dims is None else sdy.tensor_sharding(context, self.meshes.name(group), dims)
            self.types[key] = mpmd_types.MeshTensor(group_name(group), tensor, sharding).to_type(context)
        return self.types[key]

    def usual_type(self, source: Source, group: int) -> ir.Type:
        """The type of a value on a group, in its layout there."""
        return self.type(group, self.tensor(source), self.layouts.of(source, group))

    def found_type(self, export: Export, group: int) -> ir.Type:
        """The type of what `find` gives."""
        if self.plan.is_usual(export):
            return self.usual_type(export.source, group)
        return self.type(group, self.tensor(export.source), export.dims)

    # Values.

    def find(self, export: Export, stage: int) -> Any:
        """A value on the group of a stage: in its usual layout there, or made for one purpose in another."""
        source, group = export.source, self.plan.group(stage)
        if self.plan.is_usual(export):
            if (source, stage) in self.sent:
                return self.sent[source, stage]
            if isinstance(source, StepInput):
                return self.inputs[source, group]
        return self.made[export]  # or in another layout than everywhere else

    def usual(self, source: Source, stage: int) -> Any:
        """A value on the group of a stage that reads it."""
        if source == self.program.loop.counter:
            return self.counters[self.plan.group(stage)]
        return self.find(self.plan.usual(source), stage)

    def send(self, sources: Iterable[Source]) -> None:
        """Transfer values, just made, to the stages that want them."""
        for source in sources:
            value = None
            for stage in sorted(self.plan.transfers.get(source, ())):
                if (source, stage) in self.sent:  # a fragment may have made it anew, in another layout
                    continue
                if value is None:
                    home = self.plan.owners[source] if isinstance(source, StepInput) else self.plan.home(source).stage
                    value = self.find(self.plan.usual(source), home or 0)
                kind = self.usual_type(source, self.plan.group(stage))
                self.sent[source, stage] = mpmd.TransferOp(kind, value, loc=value.location).result

    # Fragments.

    def fragments(self, *kinds: str) -> None:
        for draft in self.plan.drafts:
            if draft.place.kind in kinds:
                self.fragment(draft)
                self.send(dict.fromkeys(export.source for export in draft.exports))

    def fragment(self, draft: FragmentDraft) -> None:
        place, plan = draft.place, self.plan
        group = plan.group(place.stage)
        operands = [self.local(self.usual(s, place.stage)) for s in draft.operands]
        exports = list(draft.exports)
        kinds = [self.type(group, self.tensor(e.source), e.dims) for e in exports]
        nodes = [self.program.nodes[index] for index in draft.nodes]
        op = mpmd.FragmentOp(
            kinds,
            operands,
            ir.ArrayAttr.get([mpmd.UserOriginAttr.get(place.kind, int(place.kind in _TRANSPOSED))]),
            ir.StringAttr.get(group_name(group)),
            stage_id=ir.IntegerAttr.get(ir.IntegerType.get_signless(64), place.stage),
            loc=nodes[0].op.location if nodes else None,
        )
        types = [self.tensor(source) for source in draft.operands]
        block = op.operation.regions[0].blocks.append(*types, arg_locs=[value.location for value in operands])
        with ir.InsertionPoint(block):
            mesh = self.meshes.name(group) if self.meshes.differ else ""
            content = _Content(self, dict(zip(draft.operands, block.arguments, strict=True)), mesh)
            for node in nodes:
                content.clone(node)
            mpmd.ReturnOp([content.value(export.source) for export in exports])
        self.made.update(zip(exports, op.operation.results, strict=True))

    def local(self, value: Any) -> Any:
        """A value of @main as @microbatch has it, when that is being built."""
        return self.captured.get(value, value)

    def loop(self, main: Any) -> None:
        """@microbatch with the fragments of the loop, and the loop that calls it."""
        plan, loop = self.plan, self.program.loop
        drafts = [draft for draft in plan.drafts if draft.place.kind in IN_LOOP]
        carried = [self.find(plan.initial[k], plan.carry_stage(k)) for k in plan.carries]
        outside: dict[Any, None] = {}
        groups: dict[int, None] = {}
        for draft in drafts:
            for source in draft.operands:
                if source == loop.counter:
                    groups[plan.group(draft.place.stage)] = None
                elif not plan.in_loop(source):
                    outside[self.usual(source, draft.place.stage)] = None
        counters = {g: self.type(g, self.counter_type, None) for g in sorted(groups)}
        kinds = [value.type for value in (*carried, *outside)] + list(counters.values())
        results = [value.type for value in carried]
        function = func.FuncOp(MICROBATCH, (kinds, results), visibility="private", ip=ir.InsertionPoint(main),
                               loc=loop.op.location).operation  # fmt: skip
        function.attributes[mpmd_types.TOPOLOGY] = self.topology
        places = [value.location for value in (*carried, *outside)] + [loop.op.location] * len(counters)
        block = function.regions[0].blocks.append(*kinds, arg_locs=places)
        inside = list(block.arguments)
        for k in plan.carries:
            self.made[plan.usual(loop.arguments[k])] = inside.pop(0)
        self.captured = {value: inside.pop(0) for value in outside}
        self.counters = {group: inside.pop(0) for group in counters}
        with ir.InsertionPoint(block):
            self.fragments(*IN_LOOP)
            func.ReturnOp([self.made[plan.next[k]] for k in plan.carries])
        self.captured = {}
        self.call(carried, list(outside), list(counters.values()))

    def call(self, carried: Sequence[Any], outside: Sequence[Any], counters: Sequence[ir.Type]) -> None:
        """The loop in @main: its body assigns the counter to the groups that read it and calls @microbatch."""
        plan, loop = self.plan, self.program.loop
        types = [value.type for value in carried]
        count = ir.IntegerAttr.get(ir.IntegerType.get_unsigned(32), loop.count)
        op = mpmd.ForOp(types, carried, count, loc=loop.op.location).operation
        block = op.regions[0].blocks.append(*types, self.counter_type, arg_locs=[loop.op.location] * (len(types) + 1))
        *held, counter = block.arguments
        with ir.InsertionPoint(block), loop.op.location:
            numbers = [mpmd.AssignOp(kind, counter).result for kind in counters]
            call = mpmd.CallOp(types, [*held, *outside, *numbers], MICROBATCH)
            mpmd.ReturnOp(list(call.operation.results))
        for k, result in zip(plan.carries, op.results, strict=True):
            self.made[plan.usual(loop.results[k])] = result
        self.send(loop.results[k] for k in plan.carries)


class _Content:
    """The inside of one fragment: what its operands stand for, and what was cloned into it.

    `mesh` is the one it runs on where there are several: what is said of the others is left out.
    """

    def __init__(self, builder: _FragmentBuilder, operands: dict[Source, Any], mesh: str) -> None:
        self.program, self.mesh = builder.program, mesh
        self.values = operands
        counter = self.program.loop.counter
        if counter in operands:
            self.values[counter] = stablehlo.ConvertOp(counter.type, operands[counter]).result

    def value(self, value: Source) -> Any:
        """A value in here, cloning the operation that makes it if it is not an operand."""
        source = self.program.source(value)
        if source not in self.values:
            loop = self.program.loop
            if source == loop.counter_result:
                self.values[source] = splat(loop.counter_result.type, loop.count)
            else:
                node = self.program.node_of(source)
                assert node is not None and node.home is None, f"{source} is not an operand"
                self.clone(node)
        return self.values[source]

    def clone(self, node: StagedOp) -> None:
        """Clone an operation, reading the values in here."""
        op = node.op
        if self.mesh and op.name in CONSTRAINTS and sdy.mesh_of(op.attributes["sharding"]) != self.mesh:
            self.values[op.results[0]] = self.value(op.operands[0])
            return
        reads = {read: self.value(read) for read in node.reads}
        made = op.clone()
        for inner in (made, *functions.walk(made)):
            if RhinoStage.name in inner.attributes:
                del inner.attributes[RhinoStage.name]
            for position, operand in enumerate(inner.operands):
                if operand in reads:
                    inner.operands[position] = reads[operand]
        if self.mesh:
            keep_mesh(made, self.mesh)
        self.values.update(zip(op.results, made.results, strict=True))


def mesh_context() -> ir.Context:
    """The context the builder works in."""
    return ir.Context.current
