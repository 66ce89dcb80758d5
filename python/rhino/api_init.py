"""Where a state made from scratch goes: the argument of the step that it will be.

Owns that match. Knows nothing of devices.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from rhino.api_build import Built
from rhino.errors import RhinoError


def init_shardings(built: Built, state: Any) -> Any:
    """The shardings of the step's argument that looks like `state` (abstract), the first such one.

    Raises:
      RhinoError: there is none; the message names the first difference to the step's first argument.
    """
    args, _ = jax.tree.unflatten(built.trace.in_tree, [leaf.aval for leaf in built.trace.leaves])
    for arg, shardings in zip(args, built.binding.in_shardings, strict=True):
        if not _difference(arg, state):
            return shardings
    raise RhinoError(
        "init_fn makes no argument of the planned step: " + (_difference(args[0], state) if args else "it takes none"),
        "plan the step with the state that init_fn makes: step.plan(jax.eval_shape(init_fn, ...), batch)",
    )


def _difference(arg: Any, state: Any) -> str:
    """The first leaf in which two pytrees of abstract values differ; empty if they are alike."""
    wanted, wanted_tree = tree_flatten_with_path(arg)
    made, made_tree = tree_flatten_with_path(state)
    for (path, a), (other, b) in zip(wanted, made, strict=False):
        if path != other:
            return f"it has {keystr(other)} where the step has {keystr(path)}"
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{keystr(path)} is {b.dtype}{list(b.shape)}, and the step has {a.dtype}{list(a.shape)}"
    if len(wanted) != len(made):
        return f"it has {len(made)} arrays, and the step's first argument {len(wanted)}"
    return "" if wanted_tree == made_tree else "the pytree is of another structure"
