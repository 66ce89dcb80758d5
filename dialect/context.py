"""The one MLIR context everybody uses, with every dialect and pass that jaxlib ships; modules from text, and to bytes.

Owns the order of jaxlib's registrations, which matters. Knows nothing of passes and never imports jax.
"""

from __future__ import annotations

import io
import os

# `dialects.sdy` must be imported before anything touches `_mlir_libs._sdy`: the other order leaves it half initialised.
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext, _mosaic_gpu_ext
from jaxlib.mlir.dialects import chlo, mpmd, sdy, stablehlo


def make_context(allow_unregistered: bool = False) -> ir.Context:
    """A fresh context: sdy, mpmd, stablehlo, chlo, func and MLIR's core dialects, loaded; their passes, registered.

    Threading is off, because IR printing aborts the process otherwise and Python passes would serialise anyway.
    Errors go to the diagnostic handlers, or to stderr when there are none.
    """
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    stablehlo.register_stablehlo_passes()
    context = ir.Context()
    context.append_dialect_registry(registry)
    # Without it the `inline` pass silently leaves every func.call alone.
    _mosaic_gpu_ext.register_inliner_extensions(context)
    context.load_all_available_dialects()
    for dialect in (sdy, mpmd, stablehlo, chlo):
        dialect.register_dialect(context)
    context.emit_error_diagnostics = True
    context.enable_multithreading(False)
    context.allow_unregistered_dialects = allow_unregistered
    return context


def parse_file(path: str | os.PathLike[str], context: ir.Context) -> ir.Module:
    """The module in a file of MLIR text or bytecode; locations carry the path as given.

    Raises:
      ir.MLIRError: the text is not a valid module.
      OSError: the file cannot be read.
    """
    with open(path, "rb"):  # MLIR reports an unreadable file without a reason
        pass
    return ir.Module.parseFile(os.fspath(path), context)


def parse_text(text: str, context: ir.Context) -> ir.Module:
    """The module in a piece of MLIR text; its locations name the file `-`. Raises ir.MLIRError."""
    return ir.Module.parse(text, context)


def parse_bytes(data: bytes, context: ir.Context) -> ir.Module:
    """The module in text or bytecode held in memory. Raises ir.MLIRError."""
    return ir.Module.parse(data, context)


def to_bytecode(module: ir.Module) -> bytes:
    """The module as MLIR bytecode, locations and all."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def replace_contents(module: ir.Module, bytecode: bytes) -> None:
    """The module becomes what the bytecode has, operations and attributes."""
    text = parse_bytes(bytecode, module.context)
    for op in list(module.body.operations):
        op.operation.erase()
    kept = [op.operation for op in text.body.operations]
    with module.context, ir.Location.unknown():
        for op in kept:
            module.body.append(op.detach_from_parent())
    given, mine = text.operation.attributes, module.operation.attributes
    for name in [name for name in mine if name not in given]:
        del mine[name]
    for name in list(given):
        mine[name] = given[name]
