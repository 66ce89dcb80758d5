"""Jax's private modules: the Python functions that a `Lowered` calls back, and giving them to another program.

Owns that alone, for `_jax`'s reasons. Private uses were tried on 0.10.2 and 0.12.0.1.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax


@dataclasses.dataclass(frozen=True, slots=True)
class Callbacks:
    """What calls of Python functions in a program refer to: the functions by number, and what jax keeps beside them."""

    functions: tuple[Any, ...] = ()
    kept: tuple[Any, ...] = ()
    effects: tuple[Any, ...] = ()


# What jax 0.10.2 to 0.12 call them; a version that lacks one does not need it.
_NAMES = {"functions": "host_callbacks", "kept": "keepalive", "effects": "unordered_effects"}


def callbacks_of(lowered: jax.stages.Lowered) -> Callbacks:
    """The Python functions that the program of a `Lowered` calls.

    Private: the arguments of the compilation, which jax keeps to itself.
    """
    arguments = lowered._lowering.compile_args
    return Callbacks(**{ours: tuple(arguments.get(theirs) or ()) for ours, theirs in _NAMES.items()})


def with_callbacks(lowered: jax.stages.Lowered, callbacks: Callbacks) -> jax.stages.Lowered:
    """The same `Lowered`, whose program calls these functions by their numbers; the one given stays as it is."""
    computation = copy.copy(lowered._lowering)
    given = {theirs: list(getattr(callbacks, ours)) for ours, theirs in _NAMES.items()}
    known = computation.compile_args
    computation.compile_args = {**known, **{name: value for name, value in given.items() if name in known}}
    called = copy.copy(lowered)
    called._lowering = computation
    return called
