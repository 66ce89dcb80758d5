"""Fragment-form IR -> `rhino.pipeline.program.PipelineProgram`: what runs is what is in the text.

Owns reading values, fragments, transfers and the loop. Decides nothing; refuses IR that is not in this form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any

from jaxlib.mlir import ir

from rhino.dialect import functions, mpmd, sdy
from rhino.dialect.attributes import RhinoArgument, RhinoMemory, RhinoMulticast, RhinoName, RhinoPlacement
from rhino.ir.diagnostics import PassError
from rhino.pipeline.program.program import (
    FRAGMENT_KINDS,
    TASKS,
    Fragment,
    GroupMesh,
    GroupValue,
    PipelineProgram,
    Result,
    StageArgument,
    StageCarry,
    Transfer,
)
from rhino.pipeline.program.stage_memory import StageMemory

_ORIGIN = re.compile(r'"([^"]*)"')
_REMEDY = "rhino-form-fragments makes it"


def read_program(module: ir.Module) -> PipelineProgram:
    """The step in the fragments of @main. Raises PassError at an operation that such a step cannot have."""
    return _ProgramReader(module, _main(module)).run()


def fragment_ops(module: ir.Module) -> list[ir.Operation]:
    """The `mpmd.fragment` operations of the step in the order of `PipelineProgram.fragments`."""
    return _ops(module, "mpmd.fragment")


def transfer_ops(module: ir.Module) -> list[ir.Operation]:
    """The `mpmd.transfer` operations of the step in the order of `PipelineProgram.transfers`."""
    return _ops(module, "mpmd.transfer")


def local_bytes(program: PipelineProgram, value: GroupValue) -> int:
    """Bytes of a value on one device of its group."""
    sizes = dict(program.meshes[value.group].axes)
    return -(-value.nbytes // prod(sdy.axis_size(axis, sizes) for axes in value.sharding for axis in axes))


def _ops(module: ir.Module, name: str) -> list[ir.Operation]:
    found: list[ir.Operation] = []
    for view in _main(module).regions[0].blocks[0].operations:
        if view.operation.name == name:
            found.append(view.operation)
        elif view.operation.name == "mpmd.for":
            body = _called(module, view.operation).regions[0].blocks[0]
            found += [inner.operation for inner in body.operations if inner.operation.name == name]
    return found


def _main(module: ir.Module) -> ir.Operation:
    main = functions.find(module, "main")
    if main is None or mpmd.topology(main) is None:
        raise PassError(module if main is None else main, "@main is not in fragments", [_REMEDY])
    return main


def _called(module: ir.Module, loop: ir.Operation) -> ir.Operation:
    call = next((v.operation for v in loop.regions[0].blocks[0].operations if v.operation.name == "mpmd.call"), None)
    function = None if call is None else functions.find(module, ir.FlatSymbolRefAttr(call.attributes["callee"]).value)
    if function is None:
        raise PassError(loop, "the loop does not call a function of the module", [_REMEDY])
    return function


class _ProgramReader:
    def __init__(self, module: ir.Module, main: ir.Operation) -> None:
        self.module, self.main = module, main
        named = mpmd.topology(main) or []
        placement = RhinoPlacement.of(module) or {}
        missing = [name for name, _ in named if name not in placement]
        if missing:
            raise PassError(module, f"rhino.placement does not say where mesh '{missing[0]}' is", [_REMEDY])
        self.meshes = [GroupMesh(name, tuple(axes), tuple(placement[name])) for name, axes in named]
        self.groups = {mesh.name: group for group, mesh in enumerate(self.meshes)}
        self.types: dict[Any, tuple[int, tuple[int, ...], str, tuple[tuple[str, ...], ...]]] = {}
        self.values: list[GroupValue] = []
        self.ids: dict[Any, int] = {}
        # By value: the kind of task that makes it, its stage (None for an argument) and its level.
        self.made: dict[int, tuple[str, int | None, int]] = {}
        self.levels: dict[tuple[str, int], int] = {}  # the last one of a kind and stage
        self.fragments = self.transfers = 0
        self.carries: list[StageCarry] = []
        self.counters = [-1] * len(self.meshes)
        self.count = 1

    def run(self) -> PipelineProgram:
        block = self.main.regions[0].blocks[0]
        for argument in block.arguments:
            self.made[self.value(argument, "step")] = ("prepare", None, 0)
        before: list[Fragment | Transfer] = []
        body: list[Fragment | Transfer] = []
        after: list[Fragment | Transfer] = []
        part, loops = before, 0
        for view in block.operations:
            op = view.operation
            if op.name == "mpmd.for":
                body, part, loops = self.loop(op), after, loops + 1
            elif op.name != "func.return":
                part.append(self.operation(op, "step"))
        if loops != 1:
            raise PassError(self.main, f"@main has {loops} loops over micro-batches, but needs one", [_REMEDY])
        returned = [self.ids[value] for value in block.operations[len(block.operations) - 1].operation.operands]
        stages = [op.stage for op in (*before, *body, *after) if isinstance(op, Fragment)]
        count = max(1 + max(stages, default=0), len(self.meshes))
        memory = tuple(StageMemory(**row) for row in RhinoMemory.of(self.module) or ())
        if memory and len(memory) != count:
            message = f"{RhinoMemory.name} has {len(memory)} stages, but the fragments are of {count}"
            raise PassError(
                self.module, message, ["drop the attribute, and bytes are those of what fragments exchange"]
            )
        addressed = iter(_addressed([*before, *body, *after], self.carries))
        return PipelineProgram(
            stages=count,
            microbatches=self.count,
            meshes=tuple(self.meshes),
            values=tuple(self.values),
            arguments=tuple(self.arguments(block)),
            results=tuple(self.results(returned)),
            before=tuple(islice(addressed, len(before))),
            body=tuple(islice(addressed, len(body))),
            after=tuple(addressed),
            carries=tuple(self.carries),
            counters=tuple(self.counters),
            memory=memory,
        )

    def arguments(self, block: Any) -> Iterator[StageArgument]:
        given = functions.argument_attributes(self.main)
        for i, (argument, attributes) in enumerate(zip(block.arguments, given, strict=True)):
            which = _which(attributes, i)
            alias = "tf.aliasing_output"
            result = ir.IntegerAttr(attributes[alias]).value if alias in attributes else -1
            donated = result >= 0 or "jax.buffer_donor" in attributes
            name = attributes[RhinoName.name].value if RhinoName.name in attributes else ""
            yield StageArgument(self.ids[argument], which[0], which[1], result, donated, name, *_way(attributes))

    def results(self, returned: list[int]) -> Iterator[Result]:
        given = functions.result_attributes(self.main)
        for i, (value, attributes) in enumerate(zip(returned, given, strict=True)):
            yield Result(value, *_which(attributes, i), *_way(attributes))

    def kind(self, value: Any) -> tuple[int, tuple[int, ...], str, tuple[tuple[str, ...], ...]]:
        known = self.types.get(value.type)
        if known is None:
            tensor = mpmd.mesh_tensor(value.type)
            if tensor is None or tensor.mesh not in self.groups:
                raise PassError(value.location, f"'{value.type}' is not a tensor on a mesh of the topology", [_REMEDY])
            ranked = ir.RankedTensorType(tensor.tensor)
            dims = sdy.dims_of(tensor.sharding) if tensor.sharding is not None else ((),) * ranked.rank
            known = (self.groups[tensor.mesh], tuple(ranked.shape), str(ranked.element_type), dims)
            self.types[value.type] = known
        return known

    def value(self, value: Any, scope: str) -> int:
        group, shape, dtype, dims = self.kind(value)
        index = self.ids[value] = len(self.values)
        self.values.append(GroupValue(index, group, shape, dtype, dims, scope))
        return index

    def operation(self, op: Any, scope: str) -> Fragment | Transfer:
        if op.name == "mpmd.transfer":
            source = self.ids[op.operands[0]]
            task, stage, level = self.made[source]
            target = self.value(op.results[0], scope)
            sender = self.values[source].group if stage is None else stage
            self.made[target] = (task, -1 if stage is None else stage, level)
            self.transfers += 1
            # Within a micro-batch the direction counts, which is known when the readers are.
            level = level if scope == "step" else -1
            return Transfer(self.transfers - 1, source, target, task, level, sender, -1, *_way(op.attributes))
        if op.name != "mpmd.fragment":
            raise PassError(op, f"'{op.name}' is not in a fragment", [_REMEDY])
        kind, stage, group = self.identity(op, scope)
        task = TASKS.get(kind, kind)
        operands = tuple(self.ids[value] for value in op.operands)
        level = 0
        if scope == "step":
            # One fragment per stage and level: a second one, such as replicas need, comes a level later.
            after = self.levels.get((kind, stage), -1) + 1
            level = self.levels[kind, stage] = max([after, *(self.level(v, task, stage) for v in operands)])
        results = tuple(self.value(result, scope) for result in op.results)
        self.made.update((result, (task, stage, level)) for result in results)
        self.fragments += 1
        return Fragment(self.fragments - 1, kind, stage, group, level, operands, results)

    def level(self, value: int, task: str, stage: int) -> int:
        """The lowest level at which a stage has a value, among the tasks of one kind."""
        made_by, source, level = self.made[value]
        return level + (source not in (None, stage)) if made_by == task else 0

    def identity(self, op: Any, scope: str) -> tuple[str, int, int]:
        """The kind, stage and group of a fragment."""
        origin = _ORIGIN.search(str(op.attributes["origin"]))
        kinds = FRAGMENT_KINDS[1:4] if scope == "microbatch" else (FRAGMENT_KINDS[0], FRAGMENT_KINDS[4])
        kind = origin[1] if origin else ""
        if kind not in kinds:
            raise PassError(op, f"fragment has origin '{kind}', but here it must be {' or '.join(kinds)}", [_REMEDY])
        if "stage_id" not in op.attributes:
            raise PassError(op, "fragment has no stage", [_REMEDY])
        stage = ir.IntegerAttr(op.attributes["stage_id"]).value
        group = self.groups[ir.StringAttr(op.attributes["mesh_name"]).value]
        if group != stage % len(self.meshes):
            message = f"stage {stage} is on mesh '{self.meshes[group].name}', not on group {stage % len(self.meshes)}"
            raise PassError(op, message, [_REMEDY])
        return kind, stage, group

    def loop(self, op: Any) -> list[Fragment | Transfer]:
        """The fragments of the function that the loop calls; its values, named as @main names them."""
        self.count = ir.IntegerAttr(op.attributes["iterations"]).value
        function = _called(self.module, op)
        block = op.regions[0].blocks[0]
        carried = {value: k for k, value in enumerate(block.arguments)}
        inner = function.regions[0].blocks[0]
        initial = [self.ids[value] for value in op.operands]
        arguments = [-1] * len(initial)
        call = next(v.operation for v in block.operations if v.operation.name == "mpmd.call")
        for parameter, given in zip(inner.arguments, call.operands, strict=True):
            if given in carried:
                arguments[carried[given]] = self.value(parameter, "microbatch")
            elif given in self.ids:
                self.ids[parameter] = self.ids[given]
            else:  # the assigned counter
                self.counters[self.kind(parameter)[0]] = self.value(parameter, "microbatch")
        *inside, returned = (view.operation for view in inner.operations)
        body = [self.operation(inner_op, "microbatch") for inner_op in inside]
        for k, (value, result) in enumerate(zip(returned.operands, op.results, strict=True)):
            following = self.ids[value]
            task, stage, _ = self.made[following]
            if arguments[k] < 0 or stage is None:
                raise PassError(op, f"value {k} that the loop carries is not one that a stage updates", [_REMEDY])
            self.made[self.value(result, "step")] = (task, stage, 0)
            self.carries.append(StageCarry(initial[k], arguments[k], following, self.ids[result], stage))
        return body


def _which(attributes: dict[str, Any], position: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The original argument or result, and the rows of it; in a step without `rhino.argument`, the one in its place."""
    if RhinoArgument.name not in attributes:
        return position, ()
    data = RhinoArgument.from_attr(attributes[RhinoArgument.name])
    return data["index"], tuple((start, stop) for start, stop in data.get("slice", ()))


def _way(attributes: Any) -> tuple[str, ...]:
    """The strategy and the scheduler by which something travels, where it is said."""
    if RhinoMulticast.name not in attributes:
        return ()
    planned = RhinoMulticast.from_attr(attributes[RhinoMulticast.name])
    return planned["strategy"], planned["scheduler"]


def _addressed(ops: Sequence[Fragment | Transfer], carries: Sequence[StageCarry]) -> list[Fragment | Transfer]:
    """The operations, each transfer with the stage that reads what it brings."""
    readers = {carry.initial: carry.stage for carry in carries}
    for op in ops:
        if isinstance(op, Fragment):
            for value in op.operands:
                readers.setdefault(value, op.stage)
    return [op if isinstance(op, Fragment) else _directed(op, readers.get(op.target, op.from_stage)) for op in ops]


def _directed(transfer: Transfer, to_stage: int) -> Transfer:
    of = transfer.of if transfer.level >= 0 else "forward" if to_stage > transfer.from_stage else "backward"
    return replace(transfer, of=of, level=max(transfer.level, 0), to_stage=to_stage)
