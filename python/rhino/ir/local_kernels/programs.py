"""What a device computes for a call: the builder of its local program, by the kernel's entry.

Owns the table of builders. `rhino.kernels` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir

from rhino.ir.kernel_calls import target_of
from rhino.ir.local_kernels.local import Local, same_call
from rhino.ir.local_kernels.products import product
from rhino.ir.local_kernels.ragged import ragged
from rhino.ir.local_kernels.selection import own_positions
from rhino.ir.local_kernels.traced import traced
from rhino.kernels.bodies import TARGET
from rhino.kernels.table import find

Program = Callable[[Local], Sequence[Any]]

_PROGRAMS: dict[str, Program] = {
    TARGET: traced,
    "ragged": ragged,
    "own-positions": own_positions,
    "cublas-product": product,
}


def program_of(op: ir.Operation) -> Program:
    """The builder of the local program of a call; it builds at the current insertion point."""
    target = target_of(op)
    entry = find(target)
    key = target if target == TARGET else "" if entry is None else entry.program
    return _PROGRAMS[key] if key else same_call
