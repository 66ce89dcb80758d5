"""Waiting for actions and gathering their times from all processes.

Owns what a measurement over several processes is. Knows nothing of how actions run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jax

from rhino.compile._jax_processes import share
from rhino.pipeline.program import PipelineProgram
from rhino.runtime.lanes import Batch
from rhino.runtime.profile import Profile, Timed
from rhino.runtime.script import Action, RunFragment

_WAIT_S = 600.0


def waited(made: Any) -> None:
    """Waits for what an action made, of which this process may have nothing."""
    jax.block_until_ready([array for array in jax.tree.leaves(made) if array.addressable_shards])


def copied(array: Any) -> Any:
    """A copy of what this process has of an array."""
    return array.copy() if array is not None and array.addressable_shards else array


def gathered(
    program: PipelineProgram,
    script: Sequence[Action],
    actions: Sequence[Action | Batch],
    seconds: Sequence[Sequence[float]],
    alone: bool,
) -> Profile:
    """The times of all actions of a script, out of those that each process measured of its own.

    Several processes run a fragment together, and the slowest counts. Of a transfer it is the one that came last: the
    others waited for it. Transfers that were sent together share their time by their bytes.

    Args:
      alone: no other process has a part in the pipeline.
    """
    number = {id(action): index for index, action in enumerate(script)}
    mine: dict[int, list[float]] = {}
    for action, measured in zip(actions, seconds, strict=True):
        parts = action.copies if isinstance(action, Batch) else (action,)
        sizes = [0 if isinstance(part, RunFragment) else program.transfers[part.transfer].source for part in parts]
        weights = [max(1, program.values[value].nbytes) for value in sizes] if len(parts) > 1 else [1]
        for part, weight in zip(parts, weights, strict=True):
            mine[number[id(part)]] = [s * weight / sum(weights) for s in measured]
    payload = json.dumps(mine).encode()
    told = [payload] if alone else share("measured times", payload, _WAIT_S)
    everyone = [{int(index): times for index, times in json.loads(text).items()} for text in told]
    found = []
    for index, action in enumerate(script):
        lists = [times[index] for times in everyone if index in times]
        pick = max if isinstance(action, RunFragment) else min
        found.append(Timed(action, tuple(pick(column) for column in zip(*lists, strict=True))))
    return Profile(program, tuple(found))
