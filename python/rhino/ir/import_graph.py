"""MLIR -> `rhino.program.Graph`: one linear walk over @main, with Shardy's factor rules read from a scratch copy.

Owns every fact the planner takes from IR. Decides nothing, and never changes the module it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any

from jaxlib.mlir import ir, passmanager

from rhino.dialect import functions
from rhino.dialect.attributes import RhinoKernel
from rhino.dialect.context import copied
from rhino.dialect.locations import argument_name, location_text
from rhino.dialect.memories import host_kind, is_host, placed_in
from rhino.dialect.reducers import combiners_of
from rhino.dialect.sdy import (
    SHARDING,
    closed_dims,
    dims_of,
    mesh_axes,
    mesh_of,
    replicated_axes,
    results_of,
)
from rhino.errors import RhinoError
from rhino.ir import convolutions, manual
from rhino.ir.collectives import KINDS, Axes
from rhino.ir.diagnostics import PassError
from rhino.ir.kernel_calls import RULE, kernel_of, read_rule, rule_of
from rhino.ir.local_sums import read_local_sums
from rhino.ir.pins import read_pins
from rhino.ir.rules import offered
from rhino.ir.trips import constant, trip_count
from rhino.machine.model import rate_name
from rhino.program.data import Argument, Graph, Kernel, Loose, Op, Rule, Value
from rhino.program.operations import CONSTRAINTS, CONTRACTIONS, NESTING, PLACEMENT, SOURCES

_POPULATE = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
# What the report calls manual computations.
MANUAL = "manual-computation"
# Of a value in the memory of the host they make one that is there, too.
_IN_PLACE = ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")
_TERMINATORS = ("stablehlo.return", "func.return", "sdy.return")


def import_graph(module: ir.Module, read_op_shardings: bool = False) -> Graph:
    """Reads `@main` of a module whose calls are inlined.

    Values and ops are numbered in program order; the ops of a loop body follow the loop. Time is linear in ops.
    Shardings on arguments, results and constraints become pins; those on other ops if `read_op_shardings`. What is
    pinned to stages is told apart from these: stages have meshes of their own.

    Raises:
      PassError: a tensor has a dynamic shape, a call or a branch between blocks is left; at the op.
    """
    with module.context:
        scratch = copied(module)
        # It warns of every op it has no rule for; the importer deals with those itself.
        quiet = module.context.attach_diagnostic_handler(lambda d: d.severity != ir.DiagnosticSeverity.ERROR)
        try:
            passmanager.PassManager.parse(_POPULATE).run(scratch.operation)
        finally:
            quiet.detach()
        main = functions.find(scratch, "main")
        if main is None:
            raise RhinoError("module has no function @main", "name the step function @main, as jax does")
        return _Importer(read_op_shardings, mesh_axes(scratch)).run(main)


def number_program(main: Any) -> tuple[list[Any], list[Any]]:
    """The values and operations of @main in the order `import_graph` numbers them, as handles into this module."""
    return number_block(main.regions[0].blocks[0])


def number_block(entry: Any) -> tuple[list[Any], list[Any]]:
    """The same of a block: the body of @main, or of a manual computation."""
    values: list[Any] = []
    ops: list[Any] = []

    def visit(block: Any) -> None:
        for view in block.operations:
            op = view.operation
            if op.name in _TERMINATORS:
                continue
            ops.append(op)
            values.extend(op.results)
            if op.name in NESTING:
                blocks = [b for region in op.regions for b in region.blocks]
                for inner in blocks:
                    values.extend(inner.arguments)
                for inner in blocks:
                    visit(inner)

    values.extend(entry.arguments)
    visit(entry)
    return values, ops


class _Importer:
    """State of one walk."""

    def __init__(self, read_op_shardings: bool, meshes: Mapping[str, Axes]) -> None:
        self.graph = Graph()
        self.read_op_shardings, self.meshes = read_op_shardings, meshes
        self.ids: dict[Any, int] = {}
        self.types: dict[Any, tuple[tuple[int, ...], str]] = {}
        self.rules: dict[Any, Rule] = {}
        self.scalars: dict[int, int] = {}

    def run(self, main: Any) -> Graph:
        graph = self.graph
        graph.axes = tuple(self.meshes.get(manual.MANUAL_MESH, ()))
        block, *more = main.regions[0].blocks
        if more:
            remedy = "write the branches as stablehlo.case or stablehlo.while"
            raise PassError(block.operations[len(block.operations) - 1], "@main branches between blocks", [remedy])
        given = functions.argument_attributes(main)
        for i, (arg, attrs) in enumerate(zip(block.arguments, given, strict=True)):
            value = self.value(arg, -1, -1)
            alias = ir.IntegerAttr(attrs["tf.aliasing_output"]).value if "tf.aliasing_output" in attrs else -1
            graph.arguments.append(
                Argument(
                    value=value,
                    name=ir.StringAttr(attrs["rhino.name"]).value if "rhino.name" in attrs else argument_name(arg, i),
                    role=ir.StringAttr(attrs["rhino.role"]).value if "rhino.role" in attrs else "other",
                    donated=alias >= 0 or "jax.buffer_donor" in attrs,
                    alias=alias,
                )
            )
            if host_kind(attrs):
                graph.hosted.add(value)
            if SHARDING in attrs:
                self.pin(value, f"argument {graph.arguments[-1].name}", attrs[SHARDING])
        self.block(block, parent=-1, loop=-1, trips=1)
        graph.outputs = tuple(self.ids[v] for v in block.operations[len(block.operations) - 1].operands)
        taken = {a.alias: a.value for a in graph.arguments if a.alias >= 0}
        for i, attrs in enumerate(functions.result_attributes(main)):
            if SHARDING in attrs and graph.outputs[i] not in graph.pins:
                self.pin(graph.outputs[i], f"result {i}", attrs[SHARDING])
                if i in taken:
                    self.pin_kept(taken[i], graph.outputs[i])
        read_pins(main, self.ids, graph)
        return graph

    def value(self, v: Any, producer: int, loop: int) -> int:
        kind = v.type
        known = self.types.get(kind)
        if known is None:
            known = self.types[kind] = _shape_and_dtype(kind, v)
        index = len(self.graph.values)
        self.graph.values.append(Value(index, known[0], known[1], producer, loop))
        self.ids[v] = index
        return index

    def block(self, block: Any, parent: int, loop: int, trips: int) -> None:
        for view in block.operations:
            op = view.operation
            if op.name in _TERMINATORS:
                continue
            self.op(op, parent, loop, trips)

    def op(self, op: Any, parent: int, loop: int, trips: int) -> None:
        graph = self.graph
        name: str = op.name
        if name in ("func.call", "call"):
            raise PassError(
                op,
                f"call to {op.attributes['callee']} is not inlined",
                ["run the `rhino-inline` pass first (rhino-auto does)"],
            )
        index = len(graph.ops)
        operands = tuple([self.ids[v] for v in op.operands])
        record = Op(index, name, operands, (), self.rule(op), trips=trips, parent=parent)
        graph.ops.append(record)
        record.results = tuple([self.value(r, index, loop) for r in op.results])
        if name == "stablehlo.constant":
            record.tag = self.constant(op, record)
        elif name in NESTING:
            self.regions(op, record, loop, trips)
        elif name == manual.NAME:
            self.manual(op, record)
        elif name in KINDS and record.rule is None:
            record.rule = manual.collective_rule(op, record, graph)
        elif name == "stablehlo.optimization_barrier":
            record.ties = tuple(zip(operands, record.results, strict=True))
        elif name in CONTRACTIONS:
            record.where = location_text(op.location)
            if name == "stablehlo.convolution":
                record.convolved = convolutions.convolved(op)
        elif name in ("stablehlo.reduce", "stablehlo.scatter"):
            record.tag = ",".join(combiners_of(op))
        elif name == "stablehlo.custom_call":
            record.tag = ir.StringAttr(op.attributes["call_target_name"]).value
            if record.tag == PLACEMENT and is_host(placed_in(op)):
                graph.hosted.update(record.results)
        elif name in _IN_PLACE and operands[0] in graph.hosted:
            graph.hosted.update(record.results)
        for tie in record.ties:
            if tie[0] in graph.hosted:
                graph.hosted.update(tie)
        if RhinoKernel.name in op.attributes:
            self.kernel(op, record)
        read_local_sums(op, record, graph, self.ids)
        self.pins(op, record)
        record.flops = self.flops(op, record)
        record.region_end = len(graph.ops)

    def kernel(self, op: Any, record: Op) -> None:
        """What rhino-describe-kernels wrote; factors that only some results sum Shardy's rule has as any other."""
        kernel = kernel_of(op)
        record.kernel = replace(kernel, dtype=rate_name(kernel.dtype))
        record.where = location_text(op.location)
        if record.rule is not None and kernel.sums:
            record.rule = rule_of(op)

    def manual(self, op: Any, record: Op) -> None:
        """A manual computation is one op; its body is a program of its own, in a device's shapes."""
        mesh = self.meshes.get(manual.mesh_name(op))
        if not mesh:
            return
        block = op.regions[0].blocks[0]
        inner = _Importer(False, self.meshes)
        inner.types, inner.rules = self.types, self.rules
        body = inner.graph
        for i, argument in enumerate(block.arguments):
            body.arguments.append(Argument(inner.value(argument, -1, -1), f"operand {i}"))
        inner.block(block, parent=-1, loop=-1, trips=1)
        body.outputs = tuple(inner.ids[v] for v in block.operations[len(block.operations) - 1].operands)
        record.rule, record.manual = manual.read_manual(op, body, number_block(block)[1], self.meshes)
        self.graph.axes = tuple(mesh)
        flops = sum(o.flops * o.trips for o in body.ops) * record.manual.ways(record.rule)
        nbytes = sum(self.graph.values[v].nbytes for v in (*record.operands, *record.results))
        dtype = self.graph.values[record.operands[0]].dtype if record.operands else "f32"
        record.kernel = Kernel(MANUAL, flops, nbytes, dtype, "vector")
        record.where = location_text(op.location)

    def pins(self, op: Any, record: Op) -> None:
        if record.name in CONSTRAINTS:
            place = f"constraint at {location_text(op.location)}"
            self.pin(record.results[0], place, op.attributes["sharding"])
        elif self.read_op_shardings and SHARDING in op.attributes and not _resharded_at_once(op):
            for v, sharding in zip(record.results, results_of(op), strict=True):
                if sharding is not None and all(closed_dims(sharding)):
                    place = f"{record.name} at {location_text(op.location)}"
                    self.pin(v, place, sharding)

    def pin(self, v: int, name: str, sharding: Any) -> None:
        """Axes that a plan adds to the mesh of the step itself are free, and all in a dimension that is open."""
        self.graph.pins[v] = (name, dims_of(sharding))
        closed, over = closed_dims(sharding), mesh_of(sharding)
        if not all(closed) or over == manual.MANUAL_MESH:
            self.graph.loose[v] = Loose(
                tuple(not c for c in closed),
                tuple(axis for axis, _ in self.meshes.get(over, ())),
                replicated_axes(sharding),
            )

    def pin_kept(self, argument: int, result: int) -> None:
        """A result in the buffer of an argument lies as that does, however it is made, unless both are given."""
        pins, loose = self.graph.pins, self.graph.loose
        if argument not in pins:
            pins[argument] = pins[result]
            if result in loose:
                loose[argument] = loose[result]
        if argument == result or (pins[argument][1], loose.get(argument)) != (pins[result][1], loose.get(result)):
            return
        del pins[result]
        loose.pop(result, None)

    def constant(self, op: Any, record: Op) -> str:
        try:
            value = ir.DenseElementsAttr(op.attributes["value"])
        except (ValueError, TypeError):  # an elided or resource constant, or complex numbers, which have no class here
            return "dense"
        if not value.is_splat:
            return "dense"
        if not self.graph.values[record.results[0]].shape and str(value.type).endswith(("i32>", "i64>")):
            self.scalars[record.results[0]] = int(ir.IntegerAttr(value.get_splat_value()).value)
        return "splat"

    def regions(self, op: Any, record: Op, loop: int, trips: int) -> None:
        ids = self.ids
        is_loop = record.name == "stablehlo.while"
        inner_loop = record.index if is_loop else loop
        per_region: list[list[int]] = []
        yields: list[list[int]] = []
        blocks = [b for region in op.regions for b in region.blocks]
        for block in blocks:
            per_region.append([self.value(a, -1, inner_loop) for a in block.arguments])
        if is_loop:
            for v, args in zip(record.operands, zip(*per_region, strict=True), strict=True):
                if v in self.graph.hosted:
                    self.graph.hosted.update(args)
            record.iterations = trip_count(op, lambda v: self.scalars.get(ids[v]) if v in ids else constant(v))
            trips *= record.iterations
            if "rhino.microbatches" in op.attributes:
                self.graph.microbatch_loop = record.index
        for block in blocks:
            self.block(block, record.index, inner_loop, trips)
            last = block.operations[len(block.operations) - 1]
            yields.append([ids[v] for v in last.operands])
        if is_loop:
            cond_args, body_args = per_region
            record.ties = tuple(zip(record.operands, cond_args, body_args, yields[1], record.results, strict=True))
        else:
            record.ties = tuple(zip(*yields, record.results, strict=True))

    def rule(self, op: Any) -> Rule | None:
        attributes = op.attributes
        if RULE in attributes:
            attr = attributes[RULE]
            rule = self.rules.get(attr)
            if rule is None:
                rule = self.rules[attr] = read_rule(attr)
            return offered(op, rule)
        if (op.name.startswith("chlo.") or op.name in CONSTRAINTS) and len(op.results) == 1:
            return self.identity_rule(op)
        return self.squeezed_rule(op) if op.name == "stablehlo.reshape" else None

    def identity_rule(self, op: Any) -> Rule | None:
        """Shardy has no rules for chlo and its own constraints; where all shapes are equal they get the obvious one."""
        shape = _shape_and_dtype(op.results[0].type, op.results[0])[0]
        if any(_shape_and_dtype(v.type, v)[0] != shape for v in op.operands):
            return None
        dims = tuple((i,) for i in range(len(shape)))
        return Rule(shape, (dims,) * len(op.operands), (dims,))

    def squeezed_rule(self, op: Any) -> Rule | None:
        """Shardy has no rules for views of empty tensors; those that differ in dimensions of one alone get one."""
        shapes = [_shape_and_dtype(v.type, v)[0] for v in (op.operands[0], op.results[0])]
        sizes, others = (tuple(n for n in shape if n != 1) for shape in shapes)
        if sizes != others:
            return None
        read, made = (_numbered(shape) for shape in shapes)
        return Rule(sizes, (read,), (made,))

    def flops(self, op: Any, record: Op) -> int:
        values = self.graph.values
        name = record.name
        if record.kernel is not None:
            return record.kernel.flops
        if not record.results:
            return 0
        out = values[record.results[0]].elements
        if name in ("stablehlo.dot_general", "stablehlo.dot") and record.rule is not None:
            return 2 * prod(record.rule.factor_sizes)
        if name == "stablehlo.convolution":
            kernel = values[record.operands[1]]
            # Libraries skip the zeros in a dilated input, such as the gradient of a strided convolution has.
            skipped = kernel.shape[convolutions.kernel_output_dim(op)] * convolutions.dilation(op)
            return 2 * out * kernel.elements // max(1, skipped)
        if name in SOURCES | NESTING | CONSTRAINTS:
            return 0
        return max(out, max((values[v].elements for v in record.operands), default=0))


def _numbered(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The factors of each dimension: dimensions of more than one are numbered."""
    numbers = count()
    return tuple((next(numbers),) if n != 1 else () for n in shape)


def _shape_and_dtype(kind: Any, v: Any) -> tuple[tuple[int, ...], str]:
    try:
        tensor = ir.RankedTensorType(kind)
    except ValueError:
        return (), str(kind)
    if not tensor.has_static_shape:
        raise PassError(
            v.location,
            f"type '{kind}' has a dynamic dimension",
            ["lower the step with static shapes; XLA's partitioner needs them"],
        )
    return tuple(tensor.shape), str(tensor.element_type)


def _resharded_at_once(op: Any) -> bool:
    """Whether all that reads an op's result is one constraint: XLA then takes partial sums there in one step."""
    if len(op.results) != 1:
        return False
    readers = [use.owner for use in op.results[0].uses]
    return len(readers) == 1 and readers[0].name in CONSTRAINTS
