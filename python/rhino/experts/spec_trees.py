"""Specs in pytrees: which leaf of a user's tree of specs, or of names that its arguments carry, is of which argument.

Owns the walk over both. What a spec says is in `specs`. Imports jax; Flax only where its objects are already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from rhino.api.objects import states
from rhino.errors import RhinoError
from rhino.experts.specs import Specs

Keys = tuple[str, ...]


def specs_of(specs: Specs, args: tuple[Any, ...]) -> tuple[Specs, list[Any]]:
    """The spec of each leaf of the positional arguments, None where the tree has none, and the specs with a mesh.

    Args:
      args: traced ones, in which objects of NNX are opened.

    Raises:
      RhinoError: the tree has what the arguments have not, or what is no spec; or it is of two meshes.
    """
    carried = specs.tree is None and not specs.rules and specs.axis_rules is not None
    tree = _names_in(args) if carried else specs.tree
    if tree is not None and not (_is_spec(tree) or isinstance(tree, tuple | list)):
        kind = type(tree).__name__
        remedy = "give a tuple with a pytree for each positional argument, as jax.jit(in_shardings=...) has it"
        raise RhinoError(f"the specs are a {kind}, and not one of each argument", remedy)
    if isinstance(tree, tuple | list) and len(tree) > len(args) and not _is_spec(tree):
        raise RhinoError(f"there are specs of {len(tree)} arguments, and the step takes {len(args)}", "give one each")
    given: dict[Keys, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_spec)[0]:
        if _is_spec(leaf):
            given[_keys(path)] = _plain(leaf)
        elif not carried:
            remedy = "give PartitionSpecs or NamedShardings, or with axis_rules tuples of logical names"
            raise RhinoError(f"the specs have {leaf!r} at {_shown(path)}", remedy)
    found, used = [], set()
    for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]:
        keys = _keys(path)
        at = next((keys[:n] for n in range(len(keys), -1, -1) if keys[:n] in given), None)
        if at is not None:
            used.add(at)
        found.append(None if at is None else given[at])
    if unused := next((keys for keys in given if keys not in used and given[keys] is not None and not carried), None):
        remedy = "give specs of what the step takes, such as those of its state, or a prefix of them"
        raise RhinoError(f"the specs have {'/'.join(unused) or 'a tree'}, and no argument is there", remedy)
    return _with_mesh(specs, [leaf for leaf in given.values() if isinstance(leaf, NamedSharding)]), [
        leaf.spec if isinstance(leaf, NamedSharding) else leaf for leaf in found
    ]


def _with_mesh(specs: Specs, shardings: Sequence[NamedSharding]) -> Specs:
    """Specs with the mesh of their shardings, where they have none of their own."""
    meshes = list(dict.fromkeys(tuple(sharding.mesh.shape.items()) for sharding in shardings))
    if len(meshes) > 1:
        raise RhinoError(f"the specs are over two meshes, {dict(meshes[0])} and {dict(meshes[1])}", "write all for one")
    if specs.mesh is not None or not meshes:
        if meshes and meshes[0] != specs.axes:
            raise RhinoError(f"the specs are over the mesh {dict(meshes[0])}, and not {dict(specs.axes)}", "give one")
        return specs
    return replace(specs, mesh=shardings[0].mesh)


def _names_in(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with logical names in place of the variables of NNX that carry them; boxes carry their own."""
    nnx = sys.modules.get("flax.nnx")
    found = states(args)
    if nnx is None:
        return found  # type: ignore[no-any-return]

    def is_state(node: Any) -> bool:
        return isinstance(node, nnx.State)

    return jax.tree.map(  # type: ignore[no-any-return]
        lambda node: nnx.get_partition_spec(node) if is_state(node) else node,
        found,
        is_leaf=lambda node: is_state(node) or _is_spec(node),
    )


def _is_spec(node: Any) -> bool:
    names = isinstance(node, tuple) and type(node) is tuple and any(isinstance(name, str) for name in node)
    return node is None or names or isinstance(node, PartitionSpec | NamedSharding) or _is_box(node)


def _is_box(node: Any) -> bool:
    return hasattr(type(node), "get_partition_spec")


def _plain(leaf: Any) -> Any:
    return leaf.get_partition_spec() if _is_box(leaf) else leaf


def _keys(path: Sequence[Any]) -> Keys:
    """The keys of a path as text, so that those of a dictionary of specs are those of a dataclass."""
    return tuple(str(next(getattr(key, a) for a in ("key", "name", "idx") if hasattr(key, a))) for key in path)


def _shown(path: Sequence[Any]) -> str:
    return "/".join(_keys(path)) or "its root"
