"""Steps over objects of Flax NNX (models, optimizers, metrics, random streams), which they update in place.

Owns the way of a call between the user's objects and pytrees of their arrays, through NNX's own protocol for
transformations: `split` and `merge` inside an `update_context`. Knows nothing of plans. Never imports Flax: objects of
a library that was not imported cannot be among the arguments.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import keystr

from rhino.api.signature import Signature, UserCall
from rhino.api.strided import original
from rhino.errors import RhinoError


@jax.tree_util.register_pytree_with_keys_class
@dataclass(slots=True)
class ObjectState:
    """An object as its structure (`graphdef`, part of the pytree's) and its `state`, as `nnx.split` returns them.

    Keys of its leaves are those of the state.
    """

    graphdef: Any
    state: Any

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        children, tree = jax.tree_util.tree_flatten_with_path(self.state, is_leaf=lambda node: node is not self.state)
        return [(path[0], child) for path, child in children], (self.graphdef, tree)

    def tree_flatten(self) -> tuple[Any, Any]:
        children, tree = jax.tree.flatten(self.state, is_leaf=lambda node: node is not self.state)
        return children, (self.graphdef, tree)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Sequence[Any]) -> ObjectState:
        return cls(aux[0], jax.tree.unflatten(aux[1], children))


@jax.tree_util.register_pytree_node_class
@dataclass(slots=True)
class Updated:
    """What a step over objects returns: the objects it was given, as it left them, and its own result.

    Attributes:
      leaves: of (arguments without all that is no object, result), those that are not just an argument's.
      tree: the structure of all leaves.
      kept: for each leaf the flat argument that it still is, or -1.
      states: the number of `leaves` that belong to the arguments.
    """

    leaves: list[Any]
    tree: Any
    kept: tuple[int, ...]
    states: int

    def tree_flatten(self) -> tuple[Any, Any]:
        return self.leaves, (self.tree, self.kept, self.states)

    @classmethod
    def tree_unflatten(cls, aux: Any, leaves: Sequence[Any]) -> Updated:
        return cls(list(leaves), *aux)

    @property
    def result(self) -> Any:
        """The step's own result."""
        return self.filled([None] * (1 + max(self.kept, default=0)))[1]

    def filled(self, arguments: Sequence[Any]) -> tuple[Any, Any]:
        """((args, kwargs), result), where what is kept is taken from the flat arguments."""
        given = iter(self.leaves)
        return jax.tree.unflatten(self.tree, [next(given) if at < 0 else arguments[at] for at in self.kept])  # type: ignore[no-any-return]


def _nnx() -> Any:
    return sys.modules.get("flax.nnx")


def _is_object(nnx: Any, node: Any) -> bool:
    return isinstance(node, nnx.Variable) or nnx.graph.is_graph_node(node)


def _ends(nnx: Any, node: Any) -> bool:
    """Whether the way down a pytree ends here: at an object, or at what has variables that are values."""
    return isinstance(node, nnx.State | ObjectState) or _is_object(nnx, node)


def has_objects(tree: Any) -> bool:
    """Whether the pytree holds objects of NNX. The variables of an `nnx.State` are none: it is a pytree of values."""
    nnx = _nnx()
    if nnx is None:
        return False
    return any(_is_object(nnx, node) for node in jax.tree.leaves(tree, is_leaf=functools.partial(_ends, nnx)))


def _is_opened(node: Any) -> bool:
    return isinstance(node, ObjectState)


def object_paths(tree: Any) -> frozenset[tuple[Any, ...]]:
    """Where the `ObjectState`s of a pytree are, as jax's paths of keys."""
    nodes = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_opened)[0]
    return frozenset(path for path, node in nodes if _is_opened(node))


def path_name(path: Sequence[Any], objects: frozenset[tuple[Any, ...]], start: int = 0) -> str:
    """The keys of a leaf from `start` as its user writes them: `['model'].layers[0].kernel`.

    Args:
      objects: where the pytree's `ObjectState`s are.
    """
    at = next((k for k in range(start, len(path)) if tuple(path[:k]) in objects), len(path))
    # The last key inside an object is that of a variable's value.
    names = [str(getattr(key, "key", "")) for key in path[at:-1]]
    steps = "".join(f".{name}" if name.isidentifier() else f"[{name}]" for name in names)
    return keystr(tuple(path[start:at])) + steps


def split(tree: Any, tag: Any = None) -> Any:
    """The pytree with an `ObjectState` for each object. What several share is in the first of them."""
    nnx = _nnx()
    if nnx is None:
        return tree
    with nnx.split_context(tag) as context:
        return jax.tree.map(
            lambda node: ObjectState(*context.split(node)) if _is_object(nnx, node) else node,
            tree,
            is_leaf=functools.partial(_ends, nnx),
        )


def merge(tree: Any, tag: Any = None, inner: bool | None = None) -> Any:
    """The inverse of `split`: new objects, or, with the tag of a call's context, the caller's own, updated."""
    nnx = _nnx()
    if nnx is None:
        return tree
    with nnx.merge_context(tag, inner) as context:
        return jax.tree.map(
            lambda node: context.merge(node.graphdef, node.state) if _is_opened(node) else node,
            tree,
            is_leaf=_is_opened,
        )


def states(tree: Any) -> Any:
    """The pytree with an `nnx.State` for each object or `ObjectState`: what `nnx.update` takes. Itself without any."""
    if has_objects(tree):
        tree = split(tree)
    if not any(map(_is_opened, jax.tree.leaves(tree, is_leaf=_is_opened))):
        return tree
    return jax.tree.map(lambda node: node.state if _is_opened(node) else node, tree, is_leaf=_is_opened)


def plain(tree: Any) -> Any:
    """The pytree as `rhino.original` gives it, the objects in it the very same: they are mutable."""
    nnx = _nnx()
    if nnx is None:
        return original(tree)
    ends = functools.partial(_ends, nnx)
    return jax.tree.map(lambda node: node if _is_object(nnx, node) else original(node), tree, is_leaf=ends)


# --- a call -----------------------------------------------------------------------------------------------------------


@contextmanager
def opened(call: UserCall, tag: Any) -> Iterator[UserCall]:
    """The call with pytrees for its objects; within, `pure` can be traced and `close` can be called.

    Args:
      tag: the step: NNX tells nested contexts apart by it.
    """
    nnx = _nnx()
    with nnx.update_context(tag):
        traced, named = split((call.traced_args, call.traced_kwargs), tag)
        left, static = iter(traced), {at for at, _ in call.statics}
        args = tuple(value if at in static else next(left) for at, value in enumerate(call.args))
        yield UserCall(args, call.kwargs | named, traced, named, call.names, call.statics, opened=True)


@contextmanager
def over_values(
    fn: Callable[..., Any], signature: Signature, call: UserCall, tag: Any
) -> Iterator[tuple[Callable[..., Any], UserCall]]:
    """A step and a call of it, both over pytrees of arrays where there are objects among the arguments."""
    if not has_objects((call.traced_args, call.traced_kwargs)):
        yield fn, call
        return
    with opened(call, tag) as values:
        yield pure(fn, signature, tag), values


def close(results: Updated, arguments: Sequence[Any], tag: Any) -> Any:
    """Write what a step made into the caller's objects; returns the step's own result.

    Args:
      arguments: the flat arguments, where the step has taken them from.
    """
    _, result = merge(results.filled(arguments), tag, inner=False)
    return result


def pure(fn: Callable[..., Any], signature: Signature, tag: Any) -> Callable[..., Any]:
    """The step over pytrees of its objects' arrays, which returns an `Updated`."""

    @functools.wraps(fn)
    def step(*args: Any, **kwargs: Any) -> Updated:
        given, donated = signature.flat(args, kwargs)
        positions = {id(leaf): i for i, leaf in enumerate(given)}
        own_args, own_kwargs = merge((args, kwargs), tag, inner=True)
        result = fn(*own_args, **own_kwargs)
        objects, result = split((_only_objects((own_args, own_kwargs)), result), tag)
        held, updated = jax.tree.flatten(objects)
        # A donated buffer must come back, or the object would be left without.
        kept = [positions.get(id(leaf), -1) for leaf in held]
        kept = [-1 if at in donated else at for at in kept]
        leaves, whole = jax.tree.flatten((objects, result))
        kept += [-1] * (len(leaves) - len(held))
        changed = [leaf for leaf, at in zip(leaves, kept, strict=True) if at < 0]
        return Updated(changed, whole, tuple(kept), sum(at < 0 for at in kept[: updated.num_leaves]))

    return step


def _only_objects(tree: Any) -> Any:
    nnx = _nnx()
    ends = functools.partial(_ends, nnx)
    return jax.tree.map(lambda node: node if _is_object(nnx, node) else None, tree, is_leaf=ends)


def made(init_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """`init_fn` with an `ObjectState` for each object it makes.

    Raises:
      RhinoError: it is given an object, which it may change, and nothing would say so.
    """
    if has_objects((args, kwargs)):
        raise RhinoError(
            "init_fn is given objects of NNX, and what it changes in them would be lost",
            "make them inside: step.init(lambda seed: make(nnx.Rngs(seed)), 0)",
        )

    @functools.wraps(init_fn)
    def init(*args: Any, **kwargs: Any) -> Any:
        return split(init_fn(*args, **kwargs))

    return init
