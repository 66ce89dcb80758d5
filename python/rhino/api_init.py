"""State of a planned step, made from scratch or brought from elsewhere, as the plan keeps it.

Owns finding the argument of the step that a state is, and placing its leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import keystr, tree_flatten_with_path

from rhino.api_build import Built
from rhino.api_objects import has_objects, made, merge, split, states
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
    init_fn, made = made_by(init_fn, args, kwargs)
    leaves, tree = argument_like(built, made, "init_fn makes")
    if built.job is not None:
        args, kwargs = everywhere((args, kwargs), built.binding.mesh)
    layouts = built.binding.layouts_in[leaves]
    if not any(layouts):
        shardings = jax.tree.unflatten(jax.tree.structure(made), built.binding.flat_in[leaves])
        state = jax.jit(init_fn, out_shardings=shardings)(*args, **kwargs)
        return merge(jax.tree.unflatten(tree, jax.tree.leaves(state)))

    def init(*args: Any, **kwargs: Any) -> list[Any]:
        pairs = zip(jax.tree.leaves(init_fn(*args, **kwargs)), layouts, strict=True)
        return [leaf if layout is None else to_stored(leaf, layout) for leaf, layout in pairs]

    arrays = jax.jit(init, out_shardings=list(built.binding.flat_in[leaves]))(*args, **kwargs)
    return merge(jax.tree.unflatten(tree, wrap(arrays, layouts)))


def place_state(built: Built, state: Any) -> Any:
    """The state with each leaf in the shape and sharding in which the plan stores it; the one given stays as it is.

    Raises:
      RhinoError: as `make_state`.
    """
    state = split(state)
    leaves, _ = argument_like(built, jax.tree.map(abstract, state), "the state is")
    layouts = built.binding.layouts_in[leaves] or (None,) * (leaves.stop - leaves.start)
    flat, tree = jax.tree.flatten(state)
    stored, shardings = store(flat, layouts), list(built.binding.flat_in[leaves])
    if built.job is None:
        arrays = jax.device_put(stored, shardings)
    else:
        avals = (leaf.aval for leaf in built.trace.leaves[leaves])
        arrays = [put(*one) for one in zip(stored, shardings, avals, strict=True)]
    return merge(jax.tree.unflatten(tree, wrap(arrays, layouts)))


def made_by(
    init_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Any]:
    """The function, of objects as pytrees where it makes any, and what it makes, abstract.

    Raises:
      RhinoError: it is given objects.
    """
    found = jax.eval_shape(init_fn, *args, **kwargs)
    if has_objects(found):
        init_fn = made(init_fn, args, kwargs)
        found = jax.eval_shape(init_fn, *args, **kwargs)
    return init_fn, found


def argument_like(built: Built, state: Any, what: str) -> tuple[slice, Any]:
    """The flat leaves of the first argument of the step that looks like `state` (abstract), and their structure.

    A tuple or list is also compared with arguments that follow each other: `params, opt_state = step.init(...)`. The
    structure is the state's, of objects as the step has them: so is what is made for it known to its plan.

    Raises:
      RhinoError: there is none; the message names the first difference to the first argument.
    """
    args, _ = jax.tree.unflatten(built.trace.in_tree, [leaf.aval for leaf in built.trace.leaves])
    count = len(state) if type(state) in (tuple, list) else 0
    ends = [0]
    for arg in args:
        ends.append(ends[-1] + len(jax.tree.leaves(arg)))
    for at, arg in enumerate(args):
        if not _difference(arg, state):
            return slice(ends[at], ends[at + 1]), _structure(arg, state)
    for at in range(len(args) - count + 1 if count else 0):
        together = type(state)(args[at : at + count])
        if not _difference(together, state):
            return slice(ends[at], ends[at + count]), _structure(together, state)
    first = args[0] if count < 2 or type(args[0]) is type(state) or len(args) < count else type(state)(args[:count])
    raise RhinoError(
        f"{what} no argument of the planned step: " + (_difference(first, state) if args else "it takes none"),
        "plan the step with such a state: step.plan(jax.eval_shape(init_fn, ...), batch)",
    )


def _structure(arg: Any, state: Any) -> Any:
    return jax.tree.structure(arg if states(arg) is not arg else state)


def _difference(arg: Any, state: Any) -> str:
    """The first leaf in which two pytrees of abstract values differ; empty if they are alike."""
    wanted, wanted_tree = tree_flatten_with_path(states(arg))
    made, made_tree = tree_flatten_with_path(states(state))
    for (path, a), (other, b) in zip(wanted, made, strict=False):
        if path != other:
            return f"it has {keystr(other)} where the step has {keystr(path)}"
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{keystr(path)} is {b.dtype}{list(b.shape)}, and the step has {a.dtype}{list(a.shape)}"
    if len(wanted) != len(made):
        return f"it has {len(made)} arrays, and the step's first argument {len(wanted)}"
    return "" if wanted_tree == made_tree else "the pytree is of another structure"
