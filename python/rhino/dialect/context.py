"""The one MLIR context everybody uses, with every dialect and pass that jaxlib ships; modules from text, and to bytes.

Owns the order of jaxlib's registrations, which matters. Knows nothing of passes and never imports jax.
"""

from __future__ import annotations

import io
import os
import re

# `dialects.sdy` must be imported before anything touches `_mlir_libs._sdy`: the other order leaves it half initialised.
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext, _mosaic_gpu_ext
from jaxlib.mlir.dialects import chlo, mpmd, sdy, stablehlo

from rhino.errors import RhinoError

BYTECODE_MAGIC = b"ML\xefR"
# What StableHLO writes as the producer of its artifacts, after the magic and a byte of the format's version.
_PORTABLE_PRODUCER = b"StableHLO_v"


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


def is_portable(data: bytes) -> bool:
    """Whether bytes are a portable artifact: bytecode of VHLO, StableHLO's dialect that later versions can read."""
    return data.startswith(BYTECODE_MAGIC) and data[5:].startswith(_PORTABLE_PRODUCER)


def parse_file(path: str | os.PathLike[str], context: ir.Context) -> ir.Module:
    """The module in a file of MLIR text, bytecode or a portable artifact; locations carry the path as given.

    Raises:
      ir.MLIRError: the text is not a valid module.
      OSError: the file cannot be read.
    """
    with open(path, "rb") as file:  # MLIR reports an unreadable file without a reason
        head = file.read(64)
        if is_portable(head):
            return parse_bytes(head + file.read(), context)
    return ir.Module.parseFile(os.fspath(path), context)


def parse_text(text: str, context: ir.Context) -> ir.Module:
    """The module in a piece of MLIR text; its locations name the file `-`. Raises ir.MLIRError."""
    return ir.Module.parse(text, context)


def parse_bytes(data: bytes, context: ir.Context) -> ir.Module:
    """The module in text, bytecode or a portable artifact, which becomes StableHLO. Raises ir.MLIRError."""
    if not is_portable(data):
        return ir.Module.parse(data, context)
    try:
        return stablehlo.deserialize_portable_artifact(context, data)
    except ValueError as error:
        raise ir.MLIRError(f"not a portable artifact that this jaxlib reads: {error}") from None


def to_portable(module: ir.Module, version: str = "") -> bytes:
    """The module as a portable artifact; `version` is StableHLO's, "1.10.0", by default the present one.

    Raises:
      RhinoError: the version is none, or does not have all that the module uses.
    """
    oldest, newest = stablehlo.get_minimum_version(), stablehlo.get_current_version()
    version = version or newest
    # Of a wrong version jaxlib speaks on standard error, past every handler.
    if not re.fullmatch(r"\d+\.\d+\.\d+", version) or not _order(oldest) <= _order(version) <= _order(newest):
        raise RhinoError(f"{version!r} is no version of StableHLO that can be written", f"give {oldest} to {newest}")
    said: list[str] = []

    def hear(diagnostic: ir.Diagnostic) -> bool:
        # After a colon it prints the operation, as VHLO.
        said.append(f"{diagnostic.message.split(': ')[0]} at {str(diagnostic.location)[4:-1]}")
        return True

    handler = module.context.attach_diagnostic_handler(hear)
    try:
        with module.context:
            return bytes(stablehlo.serialize_portable_artifact(module, version, True))
    except ValueError as error:
        remedy = f"give a later version, up to {newest}" if version != newest else "StableHLO alone is portable"
        message = f"the module cannot be written for StableHLO {version}: {said[0] if said else error}"
        raise RhinoError(message, remedy) from None
    finally:
        handler.detach()


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def to_text(module: ir.Module) -> str:
    """The text of a module that is valid: unlike `str`, this does not verify it once more to tell."""
    text: str = module.operation.get_asm(assume_verified=True)
    return text


def to_bytecode(module: ir.Module) -> bytes:
    """The module as MLIR bytecode, locations and all."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def copied(module: ir.Module) -> ir.Module:
    """A module with the same operations and attributes, in the same context."""
    with module.context, module.operation.location:
        made = ir.Module.create()
        for op in module.body.operations:
            made.body.append(op.operation.clone())
    _take_attributes(made, module)
    return made


def replace_contents(module: ir.Module, bytecode: bytes) -> None:
    """The module becomes what the bytecode has, operations and attributes."""
    text = parse_bytes(bytecode, module.context)
    for op in list(module.body.operations):
        op.operation.erase()
    kept = [op.operation for op in text.body.operations]
    with module.context, ir.Location.unknown():
        for op in kept:
            module.body.append(op.detach_from_parent())
    _take_attributes(module, text)


def _take_attributes(module: ir.Module, other: ir.Module) -> None:
    given, mine = other.operation.attributes, module.operation.attributes
    for name in [name for name in mine if name not in given]:
        del mine[name]
    for name in list(given):
        mine[name] = given[name]
