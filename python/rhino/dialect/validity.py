"""Verifying modules that users did not write: what is wrong comes as one line, never as a module.

Owns this one check. Passes are verified after each step by the pass manager, which shows everything.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from rhino.dialect.locations import location_text
from rhino.errors import RhinoError, first_line


def check_valid(module: ir.Module, what: str) -> None:
    """Raise RhinoError at the first operation that does not verify. MLIR itself would print it, with all around it."""
    found: list[str] = []

    def keep(diagnostic: ir.Diagnostic) -> bool:
        found.append(f"{location_text(diagnostic.location)}: {first_line(diagnostic.message)}")
        return True

    handler = module.context.attach_diagnostic_handler(keep)
    try:
        if module.operation.verify():
            return
    except ir.MLIRError as error:
        found.append(first_line(error))
    finally:
        handler.detach()
    raise RhinoError(f"{what} is not valid: {found[0]}", "if you have not written it yourself, this is a bug in rhino")
