"""Functions of a module: finding them, walking their operations, and the attributes of their arguments and results.

Owns these few traversals, which MLIR's bindings spell differently each time. Knows nothing of what the attributes mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from jaxlib.mlir import ir

from rhino.errors import RhinoError


def all_functions(module: ir.Module) -> list[ir.Operation]:
    """The module's `func.func` operations, in order, declarations included."""
    return [op.operation for op in module.body.operations if op.operation.name == "func.func"]


def find(module: ir.Module, name: str) -> ir.Operation | None:
    """The function called `name`, or None."""
    for function in all_functions(module):
        if name_of(function) == name:
            return function
    return None


def name_of(function: ir.Operation) -> str:
    """The symbol name of a function, without the at sign."""
    return str(function.attributes["sym_name"].value)


def make_main(module: ir.Module, name: str = "") -> None:
    """Have the step be called @main, as jax calls it: the function `name`, by default the only public one with a body.

    Nothing happens where there is a @main and no name is given, or where there is no public function. Of a module with
    another @main, that one is renamed and made private.

    Raises:
      RhinoError: there is no such function, or several that may be meant; all are listed.
    """
    bodies = [f for f in all_functions(module) if len(f.regions[0].blocks)]
    public = [f for f in bodies if is_public(f)]
    listed = ", ".join(f"@{name_of(f)}" for f in public) or "none"
    if name:
        chosen = next((f for f in bodies if name_of(f) == name), None)
        if chosen is None:
            raise RhinoError(f"the module has no function @{name} with a body", f"its public functions: {listed}")
    elif find(module, "main") is not None or not public:
        return
    elif len(public) > 1:
        remedy = f"say which one is the step: --function {name_of(public[0])}"
        raise RhinoError(f"the module has no function @main but several public ones: {listed}", remedy)
    else:
        chosen = public[0]
    if name_of(chosen) == "main":
        return
    former = find(module, "main")
    if former is not None:
        taken = {op.attributes["sym_name"].value for op in module.body.operations if "sym_name" in op.attributes}
        free = next(f"main_{i}" for i in count() if f"main_{i}" not in taken)
        _rename(module, former, free)
        former.attributes["sym_visibility"] = ir.StringAttr.get("private", module.context)
    _rename(module, chosen, "main")
    if "sym_visibility" in chosen.attributes:
        del chosen.attributes["sym_visibility"]


def is_public(function: ir.Operation) -> bool:
    """Whether others may call a function: it is not private."""
    return "sym_visibility" not in function.attributes or function.attributes["sym_visibility"].value == "public"


def _rename(module: ir.Module, function: ir.Operation, name: str) -> None:
    old = name_of(function)
    ir.SymbolTable.replace_all_symbol_uses(old, name, module.operation)
    function.attributes["sym_name"] = ir.StringAttr.get(name, module.context)


# Operations that call a function, and the attribute that names it.
_CALLEE = {"func.call": "callee", "stablehlo.composite": "decomposition"}


def calls_of(function: ir.Operation) -> list[tuple[ir.Operation, str]]:
    """The calls and composites in a function, at any depth, each with the name of the function it calls."""
    found = [op for op in walk(function) if op.name in _CALLEE]
    return [(op, str(op.attributes[_CALLEE[op.name]].value)) for op in found]


def walk(op: ir.Operation) -> Iterator[ir.Operation]:
    """The operations nested in `op`, at any depth, in program order, each before its own regions."""
    for region in op.regions:
        for block in region:
            for inner in block:
                operation = inner.operation
                yield operation
                if len(operation.regions):
                    yield from walk(operation)


def has_side_effect(op: ir.Operation) -> bool:
    """Whether an operation must run though nobody reads its results: a custom call, or what has one in its regions."""
    return acts(op) or (len(op.regions) > 0 and any(map(acts, walk(op))))


def acts(op: ir.Operation) -> bool:
    """As `has_side_effect`, of the operation without its regions."""
    return "has_side_effect" in op.attributes and bool(ir.BoolAttr(op.attributes["has_side_effect"]).value)


def owner_of(value: Any) -> Any:
    """The operation that makes a value, None for an argument of a block."""
    return None if isinstance(value, ir.BlockArgument) or isinstance(value.owner, ir.Block) else value.owner.operation


def end_of(block: ir.Block) -> ir.Operation:
    """The operation that ends a block, such as a return."""
    return block.operations[len(block.operations) - 1].operation


def copy_all(ops: Iterable[ir.Operation], values: dict[Any, Any]) -> None:
    """Copies operations to the insertion point, with `values` in place of operands; their results are added to it."""
    for op in ops:
        copy = op.clone()
        for inner in (copy, *walk(copy)):
            for position, operand in enumerate(inner.operands):
                if operand in values:
                    inner.operands[position] = values[operand]
        values.update(zip(op.results, copy.results, strict=True))


def argument_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """One dictionary of attributes per argument; change it and give it back with `set_argument_attributes`."""
    return _attributes(function, "arg_attrs", len(function.attributes["function_type"].value.inputs))


def result_attributes(function: ir.Operation) -> list[dict[str, ir.Attribute]]:
    """One dictionary of attributes per result; change it and give it back with `set_result_attributes`."""
    return _attributes(function, "res_attrs", len(function.attributes["function_type"].value.results))


def set_argument_attributes(function: ir.Operation, attributes: Sequence[Mapping[str, ir.Attribute]]) -> None:
    """Replace the attributes of all arguments."""
    _set_attributes(function, "arg_attrs", attributes)


def set_result_attributes(function: ir.Operation, attributes: Sequence[Mapping[str, ir.Attribute]]) -> None:
    """Replace the attributes of all results."""
    _set_attributes(function, "res_attrs", attributes)


def _attributes(function: ir.Operation, key: str, count: int) -> list[dict[str, ir.Attribute]]:
    if key not in function.attributes:
        return [{} for _ in range(count)]
    return [{named.name: named.attr for named in given} for given in function.attributes[key]]


def _set_attributes(function: ir.Operation, key: str, attributes: Sequence[Mapping[str, ir.Attribute]]) -> None:
    with function.context:
        function.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(dict(given)) for given in attributes])


def attributes_of(op: ir.Operation) -> dict[str, ir.Attribute]:
    """The attributes of an operation by name. Iterating gives names or pairs, as the version of jaxlib has it."""
    named = [op.attributes[i] for i in range(len(op.attributes))]
    return {one.name: one.attr for one in named}
