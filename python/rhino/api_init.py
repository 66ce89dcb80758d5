"""State of a planned step, made from scratch or brought from elsewhere, as the plan keeps it.

Owns finding the argument of the step that a state is, and placing its leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from rhino.api_build import Built
from rhino.api_signature import abstract
from rhino.api_stored import store, wrap
from rhino.api_strided import to_stored
from rhino.distributed.arrays import everywhere, put
from rhino.errors import RhinoError


def make_state(built: Built, init_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `init_fn` returns, each leaf made on its devices in the shape and sharding in which the plan stores it.

    Raises:
      RhinoError: no argument of the step looks like it; the message names the first difference to the first argument.
    """
    made = jax.eval_shape(init_fn, *args, **kwargs)
    leaves = argument_like(built, made, "init_fn makes")
    if built.job is not None:
        args, kwargs = everywhere((args, kwargs), built.binding.mesh)
    layouts = built.binding.layouts_in[leaves]
    if not any(layouts):
        shardings = jax.tree.unflatten(jax.tree.structure(made), built.binding.flat_in[leaves])
        return jax.jit(init_fn, out_shardings=shardings)(*args, **kwargs)

    def init(*args: Any, **kwargs: Any) -> list[Any]:
        pairs = zip(jax.tree.leaves(init_fn(*args, **kwargs)), layouts, strict=True)
        return [leaf if layout is None else to_stored(leaf, layout) for leaf, layout in pairs]

    arrays = jax.jit(init, out_shardings=list(built.binding.flat_in[leaves]))(*args, **kwargs)
    return jax.tree.unflatten(jax.tree.structure(made), wrap(arrays, layouts))


def place_state(built: Built, state: Any) -> Any:
    """The state with each leaf in the shape and sharding in which the plan stores it; the one given stays as it is.

    Raises:
      RhinoError: as `make_state`.
    """
    leaves = argument_like(built, jax.tree.map(abstract, state), "the state is")
    layouts = built.binding.layouts_in[leaves] or (None,) * (leaves.stop - leaves.start)
    flat, tree = jax.tree.flatten(state)
    stored, shardings = store(flat, layouts), list(built.binding.flat_in[leaves])
    if built.job is None:
        arrays = jax.device_put(stored, shardings)
    else:
        avals = (leaf.aval for leaf in built.trace.leaves[leaves])
        arrays = [put(*one) for one in zip(stored, shardings, avals, strict=True)]
    return jax.tree.unflatten(tree, wrap(arrays, layouts))


def argument_like(built: Built, state: Any, what: str) -> slice:
    """The flat leaves of the first argument of the step that looks like `state` (abstract)."""
    args, _ = jax.tree.unflatten(built.trace.in_tree, [leaf.aval for leaf in built.trace.leaves])
    start = 0
    for arg in args:
        stop = start + len(jax.tree.leaves(arg))
        if not _difference(arg, state):
            return slice(start, stop)
        start = stop
    raise RhinoError(
        f"{what} no argument of the planned step: " + (_difference(args[0], state) if args else "it takes none"),
        "plan the step with such a state: step.plan(jax.eval_shape(init_fn, ...), batch)",
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
