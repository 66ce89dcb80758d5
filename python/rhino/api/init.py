"""State of a planned step, made from scratch or brought from elsewhere, as the plan keeps it.

Owns finding the argument of the step that a state is, and placing its leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_flatten_with_path

from rhino.api.built import Built
from rhino.api.objects import has_objects, made, merge, object_paths, path_name, split, states
from rhino.api.signature import abstract
from rhino.api.stored import store, wrap
from rhino.api.strided import to_stored
from rhino.distributed.arrays import everywhere, put
from rhino.errors import RhinoError
from rhino.program.element_types import type_text


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


def from_anywhere(values: Any, devices: frozenset[Any]) -> Any:
    """Arrays that are bound to other devices than these (a key made under a mesh, say), as values of the host."""

    def there(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or not leaf.committed or leaf.sharding.device_set == devices:
            return leaf
        if not leaf.is_fully_addressable:
            return leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(np.asarray(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        return np.asarray(leaf)

    return jax.tree.map(there, values)


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
      RhinoError: there is none; the message names the first difference to the one most alike.
    """
    args, _ = jax.tree.unflatten(built.trace.in_tree, [leaf.aval for leaf in built.trace.leaves])
    names = [leaf.name for leaf in built.trace.leaves]
    count = len(state) if type(state) in (tuple, list) else 0
    ends = [0]
    for arg in args:
        ends.append(ends[-1] + len(jax.tree.leaves(arg)))
    runs = [(at, 1, arg) for at, arg in enumerate(args)]
    runs += [(at, count, type(state)(args[at : at + count])) for at in range(len(args) - count + 1) if count]
    differences = []
    for at, length, like in runs:
        leaves = slice(ends[at], ends[at + length])
        difference, alike = _difference(like, names[leaves], state)
        if not difference:
            return leaves, _structure(like, state)
        differences.append((-alike, difference))
    nearest = min(differences, key=lambda pair: pair[0])[1] if differences else "it takes none"
    raise RhinoError(
        f"{what} no argument of the planned step: {nearest}",
        "plan the step with such a state: step.plan(jax.eval_shape(init_fn, ...), batch)",
    )


def _structure(arg: Any, state: Any) -> Any:
    return jax.tree.structure(arg if states(arg) is not arg else state)


def _difference(arg: Any, names: Sequence[str], state: Any) -> tuple[str, int]:
    """The first leaf in which two pytrees of abstract values differ, empty if they are alike; and how many do not."""
    wanted, wanted_tree = tree_flatten_with_path(states(arg))
    made, made_tree = tree_flatten_with_path(states(state))
    objects = object_paths(state)
    for i, ((path, a), (other, b), name) in enumerate(zip(wanted, made, names, strict=False)):
        if path != other:
            return f"it has {path_name(other, objects) or 'an array'} where the step has {name}", i
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{name} is {type_text(b.dtype, b.shape)}, and the step has {type_text(a.dtype, a.shape)}", i
    alike = min(len(wanted), len(made))
    if len(made) > len(wanted):
        return f"it has {path_name(made[alike][0], objects)}, and the step does not", alike
    if len(made) < len(wanted):
        return f"the step has {names[alike]}, and it does not", alike
    return "" if wanted_tree == made_tree else "the pytree is of another structure", alike
