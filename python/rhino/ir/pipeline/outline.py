"""Fragments as modules of their own, which XLA compiles one by one.

Owns the outlining, and recognising fragments that are the same program. What connects them is in `read_program`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from rhino.dialect import functions, mpmd, sdy
from rhino.dialect.attributes import RhinoCluster
from rhino.dialect.validity import check_valid
from rhino.ir.meshes import MESH
from rhino.ir.pipeline.program import fragment_ops


@dataclass(frozen=True, slots=True)
class FragmentModule:
    """One fragment: `index` as in `PipelineProgram.fragments`, the text of its module, and a key equal programs share.

    The module has its group's mesh as `sdy.mesh @mesh` when the step has one, `rhino.cluster` with the hosts of one
    group, and @main with the operands and results of the fragment as plain tensors with `sdy.sharding`.
    """

    index: int
    text: str
    key: str


def outline(module: ir.Module, donations: Mapping[int, Mapping[int, int]] | None = None) -> list[FragmentModule]:
    """The fragments of a module in fragment form, in order.

    Args:
      donations: by fragment, its operands that die there: the position of the result that takes the buffer
        (`tf.aliasing_output`), or -1 for any (`jax.buffer_donor`).
    """
    given = donations or {}
    with module.context, ir.Location.unknown():
        meshes = _group_meshes(module)
        return [_outlined(module, i, op, given.get(i, {}), meshes) for i, op in enumerate(fragment_ops(module))]


def _group_meshes(module: ir.Module) -> dict[str, tuple[str, int]]:
    """By group, the symbol of its mesh, "" for none, and how many devices it has. No two meshes have the same axes."""
    main = functions.find(module, "main")
    assert main is not None
    # A mesh without axes is none of a group: jax writes those for host callbacks.
    known = {str(axes): name for name, axes in reversed(sdy.mesh_axes(module).items()) if axes}
    return {
        group: (known.get(str(axes), ""), prod(size for _, size in axes))
        for group, axes in mpmd.topology(main) or ()
    }  # fmt: skip


def _outlined(
    module: ir.Module,
    index: int,
    fragment: ir.Operation,
    donated: Mapping[int, int],
    meshes: Mapping[str, tuple[str, int]],
) -> FragmentModule:
    alone = ir.Module.create()
    cluster = RhinoCluster.of(module)
    mesh, devices = meshes[ir.StringAttr(fragment.attributes["mesh_name"]).value]
    others = {name for name, _ in meshes.values()} - {mesh}
    if cluster is not None:
        RhinoCluster.attach(alone, {**cluster, "hosts": -(-devices // cluster["devices_per_host"])})
    with ir.InsertionPoint(alone.body):
        for view in module.body.operations:
            if view.operation.name == "sdy.mesh" and view.attributes["sym_name"].value not in others:
                view.operation.clone()
        block = fragment.regions[0].blocks[0]
        *ops, returned = (view.operation for view in block.operations)
        kinds = [value.type for value in block.arguments]
        results = [value.type for value in returned.operands]
        main = func.FuncOp("main", (kinds, results), loc=fragment.location).operation
    inside = main.regions[0].blocks.append(*kinds, arg_locs=[value.location for value in block.arguments])
    values: dict[Any, Any] = dict(zip(block.arguments, inside.arguments, strict=True))
    with ir.InsertionPoint(inside):
        functions.copy_all(ops, values)
        func.ReturnOp([values[value] for value in returned.operands])
    attributes = [_sharding(value.type) for value in fragment.operands]
    for position, result in donated.items():
        if result < 0:
            attributes[position]["jax.buffer_donor"] = ir.BoolAttr.get(True)
        else:
            attributes[position]["tf.aliasing_output"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), result)
    functions.set_argument_attributes(main, attributes)
    functions.set_result_attributes(main, [_sharding(value.type) for value in fragment.results])
    if mesh not in ("", MESH):
        sdy.rename_mesh(alone, mesh, MESH)
    check_valid(alone, "the module of a fragment")
    # Printed without locations, so that layers that differ only in their place in the source are the same program.
    text = str(alone)
    return FragmentModule(index, text, hashlib.sha256(text.encode()).hexdigest())


def _sharding(kind: ir.Type) -> dict[str, ir.Attribute]:
    tensor = mpmd.mesh_tensor(kind)
    assert tensor is not None
    return {} if tensor.sharding is None else {sdy.SHARDING: tensor.sharding}
