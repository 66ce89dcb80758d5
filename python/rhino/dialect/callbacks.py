"""Calls of Python functions on the host, as jax lowers its callbacks: which operations are some.

Owns recognising them. Such a call names its function by a number that means something only in the process that traced
the program: read from a file it points nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jaxlib.mlir import ir

from rhino.dialect import functions

_TARGET = re.compile(r"xla(_ffi)?(_partitioned)?_python_(cpu|gpu)_callback")


def is_callback(op: ir.Operation) -> bool:
    """Whether an operation calls a Python function: jax.debug.print, io_callback, pure_callback and the like."""
    return op.name == "stablehlo.custom_call" and bool(_TARGET.fullmatch(op.attributes["call_target_name"].value))


def callbacks_in(module: ir.Module) -> Iterator[ir.Operation]:
    """All such calls of a module, in program order."""
    return (op for op in functions.walk(module.operation) if is_callback(op))
