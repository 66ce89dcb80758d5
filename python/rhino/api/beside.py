"""A plan for a call beside a pipeline that is there: the same stages, and state that they share stays where it is.

Owns what is asked of the search, and in which order. What a plan without stages leaves to others is in `pins`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from rhino.api.stage_pins import Pins, moves, moves_text
from rhino.api.trace import Trace
from rhino.errors import RhinoError, RhinoWarning
from rhino.ir.meshes import REPLICA_AXIS
from rhino.plan import PlanData, is_pipeline
from rhino.plan.pipeline import StagePiece
from rhino.request import PlanRequest
from rhino.sharding.meshes import Mesh, axes_text

# Plans the program of the call with these pins.
Search = Callable[[PlanRequest, Pins], PlanData]
_NO_PINS: Pins = {}
_PAD = "pad the batch to the size of the others, or drop it"


def plan_beside(
    other: PlanData, request: PlanRequest, pins: Pins, search: Search, name: str, own: bool, must_stay: bool = False
) -> PlanData:
    """The plan of another program over the state of a pipeline.

    Stages, the mesh of a replica and the schedule are the pipeline's, and its micro-batches where they divide the
    batch, else the most that do; the state is pinned to where the pipeline keeps it. Where no pipeline leaves it there,
    one that moves some in each call is planned, with a warning. A function that cannot be cut into micro-batches, such
    as a norm of the parameters, becomes one program over all devices.

    Args:
      other: the pipeline's plan.
      request: what the user asked for.
      pins: the state that the program shares with the pipeline.
      search: plans the program; called again with less that is given if that is refused.
      name: of the function.
      own: whether it is the step that was to be a pipeline, for other shapes: one program is then worth a warning.
      must_stay: whether state cannot be moved: other processes have it.

    Raises:
      RhinoError: no plan is possible, or none that leaves the state where it must stay.
    """
    same = replace(
        request,
        stages=other.stages,
        groups=other.groups,
        microbatches=other.microbatches,
        fewer=True,
        schedule=other.schedule,
    )
    tried = [(replace(same, mesh=_text(meshes)), axis) for meshes, axis in _meshes(other)]
    attempts = [attempt for attempt, _ in tried]
    refused = RhinoError("")
    for attempt, axis in tried if pins else ():
        try:
            return _said(search(attempt, _over(pins, axis)), pins, name, "")
        except RhinoError as error:
            refused = error
    stuck = bool(pins) and must_stay
    if stuck and own:
        raise RhinoError(
            f"no pipeline of {other.stages} stages takes these shapes and leaves the state on the processes that have "
            f"it: {refused.message}",
            _PAD,
        )
    why = refused.message
    for attempt in () if stuck else dict.fromkeys((*attempts, replace(same, mesh=""))):
        try:
            return _said(search(attempt, _NO_PINS), pins, name, why)
        except RhinoError as error:
            refused = error
    try:
        plan = search(replace(request, stages=1, groups=0, mesh="", microbatches=0, schedule=""), _NO_PINS)
    except RhinoError as error:
        if not own:
            raise
        raise RhinoError(
            f"no pipeline of {other.stages} stages takes these shapes ({refused.message}), and no one program does "
            f"({error.message})",
            _PAD,
        ) from error
    if own:
        warnings.warn(
            f"{name} with these shapes is one program over all devices, to which each such call moves the state: no "
            f"pipeline of {other.stages} stages takes them: {refused.message}; to keep it in place, {_PAD}",
            RhinoWarning,
            stacklevel=2,
        )
    return plan


def _over(pins: Pins, axis: str) -> Pins:
    """State that replicas share out, over an axis of another name."""
    if axis == REPLICA_AXIS:
        return pins

    def renamed(piece: StagePiece) -> StagePiece:
        dims = tuple(tuple(axis if a == REPLICA_AXIS else a for a in axes) for axes in piece.dims)
        return replace(piece, dims=dims)

    return {i: replace(pin, pieces=tuple(map(renamed, pin.pieces))) for i, pin in pins.items()}


def _meshes(plan: PlanData) -> list[tuple[list[Mesh], str]]:
    """The meshes of stages, one of each width, that leave state where it is: without replicas first, then with them.

    Each with the name of the axis that their replicas are, of a stage or of its mesh.
    """
    found = list(dict.fromkeys(plan.meshes or (plan.mesh,)))
    if not any(REPLICA_AXIS in dict(mesh) for mesh in found):
        return [(found, REPLICA_AXIS)]
    taken = {axis for mesh in found for axis, _ in mesh}
    name = next(f"{REPLICA_AXIS}s{n or ''}" for n in range(len(taken) + 1) if f"{REPLICA_AXIS}s{n or ''}" not in taken)
    alone = [tuple(axis for axis in mesh if axis[0] != REPLICA_AXIS) for mesh in found]
    # Where replicas do not divide the batch, a stage is one replica over all of its devices.
    wide: list[Mesh] = [tuple((name if axis == REPLICA_AXIS else axis, size) for axis, size in mesh) for mesh in found]
    return [(alone, REPLICA_AXIS), (wide, name)]


def _text(meshes: list[Mesh]) -> str:
    return "+".join(axes_text(mesh).replace(" ", "") for mesh in meshes)


def _said(plan: PlanData, pins: Pins, name: str, why: str) -> PlanData:
    """The plan, with a warning where it moves state."""
    if moved := moves(plan, pins):
        because = f": {why}" if why else ""
        warnings.warn(
            f"{name} moves {moves_text(moved)} between stages in each call: no stages leave it where it is{because}",
            RhinoWarning,
            stacklevel=2,
        )
    return plan


def check_stays(trace: Trace, plan: PlanData, pins: Pins) -> None:
    """Raise RhinoError if state of a pipeline over several processes would have to go to other devices than it is on.

    No process has what is on the stages of others, and a call cannot know which arrays are meant to be one.
    """
    moved = dict(moves(plan, pins))
    for i, pin in pins.items():
        here = plan.arguments[i]
        if here.name in moved and here.stages != pin.tensor.stages:
            stages = ", ".join(map(str, here.stages))
            where = f"stages {stages}" if is_pipeline(plan) else "all devices"
            raise RhinoError(
                f"{trace.name} would take {here.name} on {where}, but {pin.tensor.name} is on "
                f"stages {', '.join(map(str, pin.tensor.stages))}, which are other processes' here",
                "give batches of one size; what is no step of its own, compute in the step and return it",
            )
