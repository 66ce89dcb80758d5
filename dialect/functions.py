"""Functions of a module: finding them, walking their operations, and the attributes of their arguments and results.

Owns these few traversals, which MLIR's bindings spell differently each time. Knows nothing of what the attributes mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir


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


def walk(op: ir.Operation) -> Iterator[ir.Operation]:
    """The operations nested in `op`, at any depth, in program order, each before its own regions."""
    for region in op.regions:
        for block in region:
            for inner in block:
                operation = inner.operation
                yield operation
                if len(operation.regions):
                    yield from walk(operation)


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
