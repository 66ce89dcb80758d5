"""Source locations as text: where an op stands, and what its author called an argument."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir


def location_text(location: Any) -> str:
    """`file:line:col` of the innermost file location, or the location's own text when it has none."""
    seen = location
    for _ in range(32):
        kind = type(seen).__name__
        if kind == "FileLineColLoc":
            return f"{seen.filename}:{seen.start_line}:{seen.start_col}"
        if kind == "NameLoc":
            seen = seen.child_loc
        elif kind == "CallSiteLoc":
            seen = seen.callee
        elif kind == "FusedLoc" and seen.locations:
            seen = seen.locations[0]
        else:
            break
    return str(seen)


def argument_name(argument: Any, index: int) -> str:
    """The name jax gave a @main argument (`state['params']['wte']`), or `argN`."""
    location = argument.location
    if isinstance(location, ir.NameLoc):
        return str(location.name_str)
    return f"arg{index}"
