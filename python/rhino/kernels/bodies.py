"""Kernels that a step brings along: what they compute on a device's parts is made by whoever traced them.

Owns handing them from the trace to the passes. Knows neither jax nor MLIR: a body gives a module as bytecode.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rhino.program.data import Dims

# The target of calls that stand for a body; their backend_config is its name.
TARGET = "rhino.kernel"


class KernelBody(Protocol):
    """One kernel of a traced step."""

    def local(
        self,
        mesh: Sequence[tuple[str, int]],
        shapes: Sequence[Sequence[int]],
        operands: Sequence[Dims],
        results: Sequence[Dims],
    ) -> bytes:
        """A module whose @main is one manual computation over the mesh: what a device does with its parts.

        Without mesh axes @main is the kernel itself, on whole operands.

        Args:
          shapes: of the whole operands, which a loop over micro-batches may have made smaller than they were traced.
          operands, results: axes per dimension.

        Raises:
          RhinoError: the kernel cannot be split so; says why.
        """
        ...


_BODIES: ContextVar[Mapping[str, KernelBody] | None] = ContextVar("rhino-kernel-bodies", default=None)


@contextmanager
def given(bodies: Mapping[str, KernelBody]) -> Iterator[None]:
    """While it lasts, passes find these bodies by name."""
    token = _BODIES.set(bodies)
    try:
        yield
    finally:
        _BODIES.reset(token)


def find_body(name: str) -> KernelBody | None:
    """The body that a call stands for, or None: this process did not trace it, or is done with it."""
    return (_BODIES.get() or {}).get(name)
