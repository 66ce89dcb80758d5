"""Checkpoints of a planned step's state by Orbax, in the layout of the program for one device.

Files are those that Orbax writes for that program, under any plan: other plans, clusters and plain JAX restore them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

from rhino.checkpoint._orbax import ocp
from rhino.checkpoint.handler import StateHandler, StateRestore, StateSave
from rhino.checkpoint.leaves import abstract_state
from rhino.errors import RhinoError
from rhino.progress import Progress

__all__ = ["StateHandler", "StateRestore", "StateSave", "abstract_state", "restore", "save"]


def save(path: str | os.PathLike[str], state: Any, *, force: bool = False) -> None:
    """Save a state, and wait until it is on disk. `orbax.checkpoint.CheckpointManager` with `StateSave` does not wait.

    Every process of a job must call it; each writes what its own devices have. The directory has its name only once
    all of it is written.

    Args:
      path: a directory that does not exist yet; with several processes, on a file system that all of them see.
      force: overwrite it if it exists.

    Raises:
      RhinoError: the path exists, or a leaf is none that a checkpoint can hold.
    """
    where = os.path.abspath(os.fspath(path))
    if not force and os.path.exists(where):
        raise RhinoError(f"{where} exists already", "give another path, or force=True to overwrite it")
    with ocp.Checkpointer(StateHandler()) as checkpointer, Progress("writing a checkpoint", jax.process_index() != 0):
        checkpointer.save(where, args=StateSave(state), force=force)


def restore(path: str | os.PathLike[str], target: Any, argument: int | Sequence[int] = 0) -> Any:
    """Read a state that `save` or Orbax itself wrote, under whatever plan, onto the devices where the target has it.

    No device and no process ever holds more than its own part.

    Args:
      path: the directory that was saved to.
      target: a step from `rhino.parallelize` that has a plan; or a state, or `abstract_state` of either.
      argument: of a step, which of its positional arguments the state is; several make a tuple.

    Returns:
      The state; for objects of NNX new ones.

    Raises:
      RhinoError: there is no checkpoint, it is of another state, or it is damaged.
    """
    where = os.path.abspath(os.fspath(path))
    if not os.path.isdir(where):
        raise RhinoError(f"there is no checkpoint in {where}", "give a folder that rhino.checkpoint.save wrote")
    with ocp.Checkpointer(StateHandler()) as checkpointer, Progress("reading a checkpoint", jax.process_index() != 0):
        return checkpointer.restore(where, args=StateRestore(target, argument))
