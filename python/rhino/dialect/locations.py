"""Source locations: where an op stands, and what its author called an argument."""

from __future__ import annotations

import re

from jaxlib.mlir import ir

# The end of what jax names a call: `jit(step)/while/body/jit(dynamic_index_in_dim)`.
_CALLED = re.compile(r"(?:^|/)p?jit\(([^()]*)\)$")


def location_text(location: ir.Location) -> str:
    """`file:line:col` of a location (`file_location`), or its own text when it has none."""
    found = file_location(location)
    return str(location) if found is None else f"{found.filename}:{found.start_line}:{found.start_col}"


def file_location(location: ir.Location) -> ir.FileLineColLoc | None:
    """The innermost place in a file that a location has, of names, calls and fusions.

    What a library's jitted function does stands where it is called: jax traces such a function once, and its operations
    keep the frames of its *first* call, whichever program they are in.
    """
    pending = [location]
    while pending:
        here = pending.pop()
        if isinstance(here, ir.FileLineColLoc):
            return here
        if isinstance(here, ir.NameLoc):
            pending.append(here.child_loc)
        elif isinstance(here, ir.CallSiteLoc):
            pending += [here.callee, here.caller] if _traced_elsewhere(here) else [here.caller, here.callee]
        elif isinstance(here, ir.FusedLoc):
            pending += reversed(here.locations)
    return None


def _traced_elsewhere(location: ir.CallSiteLoc) -> bool:
    """Whether what is called may have the frames of another call: a user's own function is among its frames itself."""
    caller = location.caller
    called = _CALLED.search(caller.name_str) if isinstance(caller, ir.NameLoc) else None
    return called is not None and called[1] not in _functions(location.callee)


def _functions(location: ir.Location) -> set[str]:
    """The functions of which a location has frames, by their own names."""
    found, pending = set(), [location]
    while pending:
        here = pending.pop()
        if isinstance(here, ir.NameLoc):
            found.add(str(here.name_str).rpartition(".")[2])
            pending.append(here.child_loc)
        elif isinstance(here, ir.CallSiteLoc):
            pending += [here.caller, here.callee]
        elif isinstance(here, ir.FusedLoc):
            pending += here.locations
    return found


def argument_name(argument: ir.BlockArgument, index: int) -> str:
    """The name jax gave a @main argument (`state['params']['wte']`), or `argN`."""
    location = argument.location
    if isinstance(location, ir.NameLoc):
        return str(location.name_str)
    return f"arg{index}"
