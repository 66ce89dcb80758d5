"""The meshes jax writes that are no meshes of a plan: put aside before planning, and what matters put back after it.

A mesh without axes or devices says nothing (jax constrains PRNG keys to one). A mesh without axes but with a device
marks host callbacks, which run on that device alone. Planning knows one mesh with axes: neither may be in its way.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxlib.mlir import ir

from rhino.dialect import functions, sdy

_CALL = "stablehlo.custom_call"
# What tells host callbacks apart: jax numbers them here, and copies of a call keep the number.
_IDENTITY = ("call_target_name", "mhlo.backend_config", "backend_config")


@dataclass(frozen=True, slots=True)
class Aside:
    """Meshes of one device, as text, and by its identity the sharding of each custom call that stood on one."""

    meshes: tuple[str, ...]
    calls: dict[tuple[str, ...], str]


def put_aside(module: ir.Module) -> Aside:
    """Take axis-less meshes, and what refers to them, out of a module."""
    names = [name for name, axes in sdy.mesh_axes(module).items() if not axes]
    if not names:
        return Aside((), {})
    calls: dict[tuple[str, ...], str] = {}
    meshes: list[str] = []
    for op in list(functions.walk(module.operation)):
        if op.name == "sdy.sharding_constraint" and sdy.mesh_of(op.attributes["sharding"]) in names:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif op.name == _CALL and sdy.SHARDING in op.attributes and _refers_to(op, names):
            calls[_identity(op)] = str(op.attributes[sdy.SHARDING])
            del op.attributes[sdy.SHARDING]
        elif op.name == "sdy.mesh" and op.attributes["sym_name"].value in names:
            meshes.append(str(op))
            op.erase()
    for function in functions.all_functions(module):
        _clear_boundary(function, names)
    used = [text for text in meshes if any(f"<{text.split()[1]}," in sharding for sharding in calls.values())]
    return Aside(tuple(used), calls)


def _clear_boundary(function: ir.Operation, names: list[str]) -> None:
    """Take such meshes off arguments and results: jax writes them there for PRNG keys."""
    arguments, results = functions.argument_attributes(function), functions.result_attributes(function)
    over = [
        given for given in (*arguments, *results) if sdy.SHARDING in given and sdy.mesh_of(given[sdy.SHARDING]) in names
    ]
    for given in over:
        del given[sdy.SHARDING]
    if over:
        functions.set_argument_attributes(function, arguments)
        functions.set_result_attributes(function, results)


def put_back(module: ir.Module, aside: Aside) -> None:
    """Put the callbacks of a planned module back on their device."""
    if not aside.calls:
        return
    with module.context:
        # A symbol must exist before anything refers to it: meshes first.
        for text in aside.meshes:
            ir.Module.parse(text).body.operations[0].operation.clone(ir.InsertionPoint.at_block_begin(module.body))
        for op in functions.walk(module.operation):
            if op.name == _CALL and (sharding := aside.calls.get(_identity(op))) is not None:
                op.attributes[sdy.SHARDING] = ir.Attribute.parse(sharding)


def _refers_to(op: ir.Operation, names: list[str]) -> bool:
    text = str(op.attributes[sdy.SHARDING])
    return any(f"<@{name}," in text for name in names)


def _identity(op: ir.Operation) -> tuple[str, ...]:
    return tuple(str(op.attributes[key]) if key in op.attributes else "" for key in _IDENTITY)
