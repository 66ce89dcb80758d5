"""Makes an annotated module fit for XLA: what XLA would drop or reject is written in a form it keeps.

Owns: `prepare` (text or bytecode -> `MainSignature` and bytecode for XLA). Must not know: jax, devices, targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from rhino.compile.gathers import summed_as
from rhino.compile.module import MainSignature, TensorSpec, attribute_dicts, main_function, parse, read
from rhino.compile.reductions import share_reductions
from rhino.compile.reshards import keep_sources_apart, layout_of
from rhino.compile.slices import bound_slices
from rhino.compile.windows import keep_fillings_apart
from rhino.dialect.context import to_bytecode
from rhino.dialect.validity import check_valid
from rhino.errors import RhinoError
from rhino.ir.other_trips import OtherTrips

_ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "negate", "convert",
        "select", "compare", "and", "or", "not", "xor", "exponential", "exponential_minus_one", "log",
        "log_plus_one", "logistic", "tanh", "rsqrt", "sqrt", "cbrt", "abs", "sign", "floor", "ceil",
        "cosine", "sine", "is_finite", "clamp", "remainder",
    )
)  # fmt: skip

# Targets, by how they start, that XLA's GPU compiler takes from itself only: why, and what to do.
_PRODUCTS = (
    "it makes such calls of products itself",
    "plan the module, which writes them as products, or export the step before XLA compiles it",
)
_OF_XLA = {
    "__cublas$gemm": _PRODUCTS,
    "__cublas$lt$": _PRODUCTS,
    "__cudnn$conv": (
        "StableHLO does not say the window, the strides and the padding of the convolution",
        "export the step before XLA compiles it: stablehlo.convolution becomes such a call again",
    ),
}


def prepare(module: str | bytes, algorithms: bool = True) -> tuple[MainSignature, bytes]:
    """Reads a module and returns it ready for XLA, as MLIR bytecode.

    In the returned module the `rhino.*` attributes are gone (XLA rejects unknown dialects), the shardings of arguments
    and results are closed, an argument without one is replicated, the mesh lists its devices in order (the caller
    permutes the devices instead), a donated argument that no longer has its result's shape on a device is a
    `jax.buffer_donor`, and `mhlo.num_partitions` is the device count. Reductions are such that devices can share
    them, and what a reader has with an axis on another dimension is read by no other. Dots lose their `algorithm`
    unless `algorithms`.

    Raises:
      RhinoError: not MLIR, no `@main`, dynamic shapes, several meshes, a dimension its axes do not divide, a call that
        XLA takes from its own compiler only.
    """
    parsed = parse(module)
    signature = read(parsed)
    with parsed.context:
        _check_calls(parsed)
        _strip_rhino(parsed)
        if not algorithms:
            _drop_algorithms(parsed)
        _set_mesh_in_order(parsed)
        if (mesh := _mesh(parsed)) is not None:
            share_reductions(parsed.operation, mesh)
        _pin_op_shardings(parsed)
        if mesh is not None:
            bound_slices(parsed.operation)
            keep_fillings_apart(parsed.operation)
        _write_boundary(parsed, signature)
        if "sym_visibility" in (main := main_function(parsed)).attributes:
            del main.attributes["sym_visibility"]  # XLA looks for a public @main
        i32 = ir.IntegerType.get_signless(32)
        attributes = parsed.operation.attributes
        if "sym_name" not in attributes:
            attributes["sym_name"] = ir.StringAttr.get("main")  # jax keys its compilation cache with it
        attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(i32, signature.devices)
        attributes["mhlo.num_replicas"] = ir.IntegerAttr.get(i32, 1)
        check_valid(parsed, "the annotated module")
    return signature, to_bytecode(parsed)


def prepare_changed(module: str | bytes, trips: OtherTrips, algorithms: bool = True) -> tuple[OtherTrips, bytes | None]:
    """As `prepare`, which see, of a program whose loops do things in other trips, and which of these there were.

    None where there was nothing.
    """
    parsed = parse(module)
    found = trips.change(parsed)
    return found, prepare(to_bytecode(parsed), algorithms)[1] if found else None


def _check_calls(module: ir.Module) -> None:
    """Refuses calls that XLA's own passes make later. `XLA: own-calls-end-the-process`."""
    targets: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.custom_call":
            targets.append(str(op.attributes["call_target_name"].value))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for target in targets:
        for start, (cause, remedy) in _OF_XLA.items():
            if target.startswith(start):
                raise RhinoError(f"XLA cannot compile a module that calls @{target}: {cause}", remedy)


def _strip_rhino(module: ir.Module) -> None:
    def visit(op: ir.Operation) -> ir.WalkResult:
        for name in [name for name in op.attributes if name.startswith("rhino.")]:
            del op.attributes[name]
        for which in ("arg_attrs", "res_attrs"):
            if which in op.attributes:
                dicts = [{e.name: e.attr for e in ir.DictAttr(d)} for d in ir.ArrayAttr(op.attributes[which])]
                if any(name.startswith("rhino.") for d in dicts for name in d):
                    kept = [{n: a for n, a in d.items() if not n.startswith("rhino.")} for d in dicts]
                    op.attributes[which] = ir.ArrayAttr.get([ir.DictAttr.get(d) for d in kept])
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _drop_algorithms(module: ir.Module) -> None:
    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.dot_general" and "algorithm" in op.attributes:
            del op.attributes["algorithm"]
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _pin_op_shardings(module: ir.Module) -> None:
    """Turns the sharding written on an op into a `sdy.sharding_constraint` on each of its results.

    Without this XLA's own propagation would plan the step anew. A `sdy.reshard` becomes a constraint, too.
    `XLA: op-shardings-dropped, reshards-not-imported`.
    """
    annotated: list[ir.Operation] = []
    reshards: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "sdy.reshard":
            reshards.append(op)
        elif "sdy.sharding" in op.attributes and not op.name.startswith(("sdy.", "mpmd.", "func.")):
            annotated.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    boundary = _argument_shardings(module)
    pinned = [op for op in annotated if not _on_no_axes(op, module) and not _follows(op, boundary)]
    for op in pinned:
        shardings = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
        for index, sharding in enumerate(shardings):
            if not sdy.TensorShardingAttr(sharding).dimension_shardings:
                continue  # a scalar has nothing to pin
            _pin(op.results[index], sharding, ir.InsertionPoint.after(op))
            if op.name == "stablehlo.while":
                _pin_carry(op, index, sharding)
            elif op.name == "stablehlo.gather":
                first = summed_as(op, sharding, layout_of(op.operands[0], boundary), module)
                if first is not None:
                    _pin(op.results[index], first, ir.InsertionPoint.after(op))
    for op in reshards:
        pin = sdy.ShardingConstraintOp(
            op.operands[0], op.attributes["sharding"], loc=op.location, ip=ir.InsertionPoint(op)
        )
        op.results[0].replace_all_uses_with(pin.result)
        op.erase()
    keep_sources_apart(module, boundary)
    for op in annotated:
        if not _on_no_axes(op, module):
            del op.attributes["sdy.sharding"]


def _on_no_axes(op: ir.Operation, module: ir.Module) -> bool:
    """Whether the op sits on one device (`@maximal_mesh_0`), as jax's callbacks do: XLA insists on that attribute."""
    first = sdy.TensorShardingAttr(sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings[0])
    reference = first.mesh_or_ref
    if not isinstance(reference, ir.FlatSymbolRefAttr):
        return False
    return any(
        other.operation.name == "sdy.mesh"
        and other.attributes["sym_name"].value == reference.value
        and not sdy.MeshAttr(other.attributes["mesh"]).axes
        for other in module.body.operations
    )


def _follows(op: ir.Operation, boundary: Mapping[ir.Value, Any]) -> bool:
    """Whether propagation cannot but give the op its sharding: an element-wise op whose operands all have it already.

    Half of a training step is such ops; a constraint on each would double the time XLA takes to compile it.
    """
    if len(op.results) != 1 or op.name not in _ELEMENTWISE:
        return False
    result = op.results[0]
    if any(use.owner.operation.name == "sdy.sharding_constraint" for use in result.uses):
        return False  # the constraint's layout would spread backwards to here
    wanted = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings[0]
    known = 0
    for operand in op.operands:
        if operand.type.shape != result.type.shape:
            return False
        if operand in boundary:
            given = boundary[operand]
        else:
            owner = operand.owner
            if not isinstance(owner, (ir.Operation, ir.OpView)):
                return False
            owner = owner.operation
            if "sdy.sharding" not in owner.attributes:
                continue  # constants and what is made of them take any sharding
            given = sdy.TensorShardingPerValueAttr(owner.attributes["sdy.sharding"]).shardings[0]
            known += 1
        if given != wanted:
            return False
    return known > 0


def _argument_shardings(module: ir.Module) -> dict[ir.Value, Any]:
    main = next(op for op in module.body.operations if op.operation.name == "func.func" and op.name.value == "main")
    given = list(main.attributes["arg_attrs"]) if "arg_attrs" in main.attributes else []
    found = {}
    for argument, attributes in zip(main.regions[0].blocks[0].arguments, given, strict=False):
        if "sdy.sharding" in attributes:
            found[argument] = attributes["sdy.sharding"]
    return found


def _pin(value: ir.Value, sharding: ir.Attribute, where: ir.InsertionPoint) -> ir.Value:
    """Puts a constraint on a value and lets all its users read the constrained one."""
    pin = sdy.ShardingConstraintOp(value, sdy.TensorShardingAttr(sharding), loc=value.location, ip=where)
    value.replace_all_uses_except(pin.result, [pin.operation])
    return pin.result


def _pin_carry(loop: ir.Operation, index: int, sharding: ir.Attribute) -> None:
    """Pins a loop-carried value on all sides: initial value, inside both regions, and what the body hands on.

    Propagation runs through every side that is left open, and would shard the carried value further than planned.
    """
    attr = sdy.TensorShardingAttr(sharding)
    loop.operands[index] = sdy.ShardingConstraintOp(
        loop.operands[index], attr, loc=loop.location, ip=ir.InsertionPoint(loop)
    ).result
    for region in loop.regions:
        _pin(region.blocks[0].arguments[index], sharding, ir.InsertionPoint.at_block_begin(region.blocks[0]))
    handed_on = loop.regions[1].blocks[0].operations[-1]  # stablehlo.return of the body
    handed_on.operands[index] = sdy.ShardingConstraintOp(
        handed_on.operands[index], attr, loc=loop.location, ip=ir.InsertionPoint(handed_on)
    ).result


def _set_mesh_in_order(module: ir.Module) -> None:
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            mesh = sdy.MeshAttr(op.attributes["mesh"])
            if mesh.axes and mesh.device_ids:
                op.attributes["mesh"] = sdy.MeshAttr.get(mesh.axes)


def _mesh(module: ir.Module) -> str | None:
    """The name of the mesh, if there is one that has axes."""
    meshes = [op for op in module.body.operations if op.operation.name == "sdy.mesh" and _has_axes(op)]
    return str(meshes[0].attributes["sym_name"].value) if meshes else None


def _write_boundary(module: ir.Module, signature: MainSignature) -> None:
    """Closes the shardings of arguments and results, and keeps an alias only where both sides have one local shape."""
    symbol = _mesh(module)
    if symbol is None:
        return
    main = main_function(module)
    arguments = attribute_dicts(main, "arg_attrs")
    for attrs, spec in zip(arguments, signature.arguments, strict=True):
        if spec.sharding is None:
            open_dims = ", ".join("{}" for _ in spec.shape)
            attrs["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding<@{symbol}, [{open_dims}]>")
        else:
            attrs["sdy.sharding"] = _closed(attrs["sdy.sharding"])
        if "tf.aliasing_output" in attrs and not _aliases(attrs["tf.aliasing_output"], spec, signature):
            del attrs["tf.aliasing_output"]
            attrs["jax.buffer_donor"] = ir.BoolAttr.get(True)
    results = attribute_dicts(main, "res_attrs")
    for attrs, spec in zip(results, signature.results, strict=True):
        if spec.sharding is not None:
            attrs["sdy.sharding"] = _closed(attrs["sdy.sharding"])
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(d) for d in arguments])
    main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(d) for d in results])


def _aliases(output: ir.Attribute, argument: TensorSpec, signature: MainSignature) -> bool:
    """Whether a device holds the same shape of the argument and of the result it is to share a buffer with."""
    index = ir.IntegerAttr(output).value
    if index >= len(signature.results):
        raise RhinoError(f"an argument of @main aliases result {index} of {len(signature.results)}")
    result = signature.results[index]
    replicated = tuple(() for _ in argument.shape)
    return (argument.shape, argument.dtype) == (result.shape, result.dtype) and (
        (argument.sharding or replicated) == result.sharding
    )


def _has_axes(mesh_op: Any) -> bool:
    return len(sdy.MeshAttr(mesh_op.attributes["mesh"]).axes) > 0


def _closed(attr: ir.Attribute) -> ir.Attribute:
    """The same sharding with every dimension closed, which is how jax states the shardings of a jitted function."""
    sharding = sdy.TensorShardingAttr(attr)
    dims = [
        sdy.DimensionShardingAttr.get(list(dim.axes), is_closed=True)
        for dim in map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
    ]
    return sdy.TensorShardingAttr.get(sharding.mesh_or_ref, dims)
