"""Orbax's handler for the state of a planned step: what its Checkpointers and CheckpointManagers call.

Owns what is checked before anything is written or read. Knows nothing of the files of one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_map_with_path

from rhino.api.objects import merge, states
from rhino.array_like import ArrayLike
from rhino.checkpoint._orbax import ocp, type_handlers
from rhino.checkpoint.arrays import PlaceArgs, StateArrayHandler
from rhino.checkpoint.leaves import AbstractLeaf, abstract_leaf, is_key, key_bits, target_of
from rhino.errors import RhinoError, first_line
from rhino.program.element_types import type_text


def _registry() -> Any:
    arrays = StateArrayHandler()
    scalars = type_handlers.ScalarHandler()
    return type_handlers.create_type_handler_registry(
        (int, scalars),
        (float, scalars),
        (bytes, scalars),
        (np.ndarray, type_handlers.NumpyHandler()),
        (ArrayLike, arrays),
        (jax.Array, arrays),
        (str, type_handlers.StringHandler()),
    )


class StateHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]
    """Saves and restores pytrees as `orbax.checkpoint.StandardCheckpointHandler` does, in the same files.

    Leaves may also be in any of Rhino's forms and on the devices of any process. Made by Orbax when it is given a
    `StateSave` or `StateRestore`; or `orbax.checkpoint.AsyncCheckpointer(StateHandler())`.
    """

    def __init__(self) -> None:
        self._types = _registry()
        self._impl = ocp.PyTreeCheckpointHandler(type_handler_registry=self._types)
        # The name that is written into the checkpoint: of Orbax's own handler, which reads it without Rhino. Not the
        # class's, by which Orbax finds handlers.
        self.typestr = ocp.StandardCheckpointHandler.typestr

    async def async_save(self, directory: Any, args: StateSave) -> Any:
        """Copies what this process writes to host memory; returns futures that write it.

        Raises:
          RhinoError: a leaf is none that a checkpoint can hold, or was donated.
        """
        state = tree_map_with_path(lambda path, leaf: self._savable(keystr(path), leaf), states(args.item))
        return await self._impl.async_save(
            directory, args=ocp.args.PyTreeSave(state, custom_metadata=args.custom_metadata)
        )

    def save(self, directory: Any, args: StateSave) -> None:
        """As `async_save`, and waits for it."""
        state = tree_map_with_path(lambda path, leaf: self._savable(keystr(path), leaf), states(args.item))
        self._impl.save(directory, args=ocp.args.PyTreeSave(state, custom_metadata=args.custom_metadata))

    def restore(self, directory: Any, args: StateRestore | None = None) -> Any:
        """Reads each leaf onto the devices where the target has it.

        Raises:
          RhinoError: there is no checkpoint, it is of another state, or it is damaged.
        """
        if args is None or args.item is None:
            raise RhinoError(
                "restoring needs to know where the state goes",
                "give StateRestore(step) with a planned step, or a state like the one to restore",
            )
        target = target_of(args.item, args.argument)
        saved = states(target)  # objects are in files as `nnx.state` of them is
        self._check(directory, saved)
        how = tree_map_with_path(lambda path, leaf: _restore_args(keystr(path), leaf), saved)
        found = self._impl.restore(directory, args=ocp.args.PyTreeRestore(saved, how))
        return (
            found if saved is target else merge(jax.tree.unflatten(jax.tree.structure(target), jax.tree.leaves(found)))
        )

    def metadata(self, directory: Any) -> Any:
        """Shapes and types of what is saved, as Orbax says it."""
        return self._impl.metadata(directory)

    def finalize(self, directory: Any) -> None:
        """Makes one store of what the processes wrote."""
        self._impl.finalize(directory)

    def close(self) -> None:
        """Nothing is kept open."""
        self._impl.close()

    def _savable(self, name: str, leaf: Any) -> Any:
        if isinstance(leaf, jax.Array | ArrayLike):
            if leaf.is_deleted():
                raise RhinoError(
                    f"{name or 'the state'} has been deleted: a step took its buffer, as donated",
                    "save the state that the step returned",
                )
        elif isinstance(leaf, np.generic) or not self._types.has(type(leaf)):
            # As Orbax's own handler: what is a number of numpy becomes an array of it.
            if not hasattr(leaf, "__array__"):
                raise RhinoError(
                    f"{name or 'the state'} is a {type(leaf).__name__}, which no checkpoint can hold",
                    "save only arrays, numbers and text: for Equinox eqx.filter(model, eqx.is_array)",
                )
            leaf = np.asarray(leaf)
        if 0 in getattr(leaf, "shape", ()):
            raise RhinoError(f"{name} has shape {tuple(leaf.shape)}, and Orbax saves no array without elements")
        return leaf

    def _check(self, directory: Any, target: Any) -> None:
        """Says in one line in what the checkpoint is not of this state."""
        try:
            saved = ocp.tree.to_flat_dict(self.metadata(directory).tree)
        except (FileNotFoundError, ValueError, KeyError) as error:
            raise RhinoError(
                f"{directory} is no checkpoint of a pytree, or is damaged: {first_line(error)}",
                "give the directory that was saved to; with several items in a checkpoint, the item's own",
            ) from None
        wanted = ocp.tree.to_flat_dict(ocp.tree.serialize_tree(target, keep_empty_nodes=True))
        for key in wanted:
            if key not in saved:
                raise RhinoError(
                    f"the state has {_name(key)}, and the checkpoint in {directory} does not",
                    "restore into the state that was saved: is the model or the optimizer another?",
                )
        for key in saved:
            if key not in wanted:
                raise RhinoError(
                    f"the checkpoint in {directory} has {_name(key)}, and the state does not",
                    "restore into the state that was saved: is the model or the optimizer another?",
                )
        for key, leaf in wanted.items():
            _check_leaf(_name(key), leaf, saved[key])


def _check_leaf(name: str, leaf: Any, saved: Any) -> None:
    place = abstract_leaf(leaf)
    if not hasattr(place, "shape") or not hasattr(place, "dtype"):
        return  # numbers and text: Orbax converts them
    if is_key(place.dtype):
        place = key_bits(place)
    shape = tuple(getattr(saved, "shape", ()))
    dtype = getattr(saved, "dtype", None)
    if dtype is None:
        raise RhinoError(f"{name} is text in the checkpoint, and the state has {type_text(place.dtype, place.shape)}")
    # A checkpoint of one device may hold Python and numpy numbers, which jax narrows when it takes them.
    if shape != tuple(place.shape) or place.dtype not in (dtype, jax.dtypes.canonicalize_dtype(dtype)):
        raise RhinoError(
            f"{name} is {type_text(np.dtype(dtype), shape)} in the checkpoint, and "
            f"{type_text(place.dtype, place.shape)} in the state",
            "restore into a state of the shapes and types that were saved, and convert it then",
        )


def _restore_args(name: str, leaf: Any) -> Any:
    place = abstract_leaf(leaf)
    if isinstance(place, AbstractLeaf):
        return PlaceArgs(restore_type=jax.Array, dtype=place.dtype, leaf=place, name=name)
    return ocp.checkpoint_utils.construct_restore_args(np.asarray(place) if isinstance(place, np.generic) else place)


def _name(key: tuple[Any, ...]) -> str:
    return ".".join(map(str, key))


@ocp.args.register_with_handler(StateHandler, for_save=True)  # type: ignore[untyped-decorator]
@dataclass
class StateSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """A state to save, for `orbax.checkpoint`: `CheckpointManager(...).save(n, args=StateSave(state))`.

    Attributes:
      item: the state: a pytree whose arrays are in any of Rhino's forms.
      custom_metadata: for the user, as of Orbax's own `StandardSave`; JSON.
    """

    item: Any
    custom_metadata: Any = None


@ocp.args.register_with_handler(StateHandler, for_restore=True)  # type: ignore[untyped-decorator]
@dataclass
class StateRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """Where to restore a state, for `orbax.checkpoint`: `CheckpointManager(...).restore(n, args=StateRestore(step))`.

    Attributes:
      item: a planned step; or a state, or what `abstract_state` returns.
      argument: of a step, which of its positional arguments the state is; several make a tuple.
    """

    item: Any = None
    argument: int | Sequence[int] = 0
