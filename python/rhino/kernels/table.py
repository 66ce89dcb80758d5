"""The table of kernels: which entry describes a call, those that users registered first.

Owns the look-up. What is known of one kernel is in the file of its family.
"""

from __future__ import annotations

from rhino.kernels import (
    attention,
    block_scaled,
    compiled,
    convolution,
    fourier,
    linalg,
    norms,
    products,
    ragged,
    selection,
    transformer_engine,
    transformer_engine_attention,
)
from rhino.kernels.data import Entry, KernelCall, Known
from rhino.kernels.registered import registered

ENTRIES: tuple[Entry, ...] = (
    *attention.ENTRIES,
    *linalg.ENTRIES,
    *selection.ENTRIES,
    *fourier.ENTRIES,
    *ragged.ENTRIES,
    *products.ENTRIES,
    *block_scaled.ENTRIES,
    *convolution.ENTRIES,
    *norms.ENTRIES,
    *transformer_engine.ENTRIES,
    *transformer_engine_attention.ENTRIES,
    *compiled.ENTRIES,
)

_BY_TARGET = {target: entry for entry in ENTRIES for target in entry.targets}


def find(target: str) -> Entry | None:
    """The entry for calls of a target, or None: that of the user, if there is one."""
    given = registered(target)
    return _BY_TARGET.get(target) if given is None else given.entry()


def describe(call: KernelCall) -> tuple[Entry, Known] | None:
    """What is known of a call; None if no entry has its target.

    Raises:
      Refused: the entry does not know this kind of call; the message says why.
      RhinoError: a registered rule does not suit the call's shapes.
    """
    entry = find(call.target)
    return None if entry is None else (entry, entry.describe(call))
