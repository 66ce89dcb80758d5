"""Where operations stand, in programs that share what jax traces once."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from rhino.dialect import functions
from rhino.dialect.locations import location_text
from rhino.passes.normalize.inline import Inline
from rhino.passes.pass_manager import PassManager

X = jnp.ones((5, 7))


def places(step: Callable[..., jax.Array], name: str) -> set[str]:
    """Where the ops of a name stand in a lowered function without calls."""
    module = jax.jit(step).lower(X).compiler_ir()
    PassManager(module.context).add(Inline()).run(module)
    main = functions.find(module, "main")
    assert main is not None
    return {location_text(op.location) for op in functions.walk(main) if op.name == name}


def line(step: Callable[..., jax.Array], text: str) -> str:
    """The place of the line of a function that has a text, without its column."""
    lines, first = inspect.getsourcelines(step)
    (found,) = (first + k for k, source in enumerate(lines) if text in source)
    return f"{__file__}:{found}:"


@jax.jit
def helper(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


def clipped(x: jax.Array) -> jax.Array:
    return jnp.clip(helper(x), 0, 1)


def clipped_again(x: jax.Array) -> jax.Array:
    y = helper(x)
    return 2 * jnp.clip(y, 0, 1)


@pytest.mark.parametrize("step", [clipped, clipped_again, clipped])
def test_what_a_library_traced_once_stands_where_each_program_calls_it(step: Callable[..., jax.Array]) -> None:
    (place,) = places(step, "stablehlo.minimum")
    assert place.startswith(line(step, "jnp.clip"))
    # A user's own function has the same line, whoever calls it.
    (place,) = places(step, "stablehlo.sine")
    assert place.startswith(line(helper, "jnp.sin"))
