"""A plan for a call beside a pipeline that is there: the same stages, so that state they share stays where it is.

Owns what is asked of the search, and in which order. What a plan without stages leaves to others is in `api_pins`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from rhino.api_pins import find_pins
from rhino.api_trace import Trace
from rhino.errors import RhinoError, RhinoWarning
from rhino.plan import Plan, is_pipeline
from rhino.plan_module import Request


def plan_beside(other: Plan, request: Request, search: Callable[[Request], Plan], step: str) -> Plan:
    """The plan of another program over the state of a pipeline.

    Stages, the mesh of a replica and the schedule are the pipeline's, and its micro-batches where they divide the
    batch, else the most that do. What the new plan keeps elsewhere all the same is moved by the call. A function that
    cannot be cut into micro-batches, such as a norm of the parameters, becomes one program over all devices.

    Args:
      other: the pipeline's plan.
      request: what the user asked for.
      search: plans the program; called again with less that is given if that is refused.
      step: the name of the step that was to be a pipeline, if this is it, for other shapes: one program is then worth
        a warning. Empty for another function.

    Raises:
      RhinoError: no plan is possible.
    """
    mesh = "" if other.meshes else "x".join(str(size) for _, size in other.mesh)
    count, schedule = other.microbatches, other.schedule
    same = replace(request, stages=other.stages, mesh=mesh, microbatches=count, fewer=True, schedule=schedule)
    attempts = (same, replace(same, mesh=""))
    refused = RhinoError("")
    for attempt in dict.fromkeys(attempts):
        try:
            return search(attempt)
        except RhinoError as error:
            refused = error
    try:
        plan = search(replace(request, stages=1, mesh="", microbatches=0, schedule=""))
    except RhinoError as error:
        if not step:
            raise
        raise RhinoError(
            f"no pipeline of {other.stages} stages takes these shapes ({refused.message}), and no one program does "
            f"({error.message})",
            "pad the batch to the size of the others, or drop it",
        ) from error
    if step:
        warnings.warn(
            f"{step} with these shapes is one program over all devices, to which each such call moves the state: no "
            f"pipeline of {other.stages} stages takes them: {refused.message}; to keep it in place, pad the batch to "
            "the size of the others, or drop it",
            RhinoWarning,
            stacklevel=2,
        )
    return plan


def check_stays(trace: Trace, plan: Plan, other: Trace, kept: Plan) -> None:
    """Raise RhinoError if state of a pipeline over several processes would have to go to other devices than it is on.

    No process has what is on the stages of others, and a call cannot know which arrays are meant to be one.
    """
    if not is_pipeline(kept):
        return
    for i, there in find_pins(trace, kept, other).items():
        here = plan.arguments[i]
        if here.stages != there.stages:
            where = f"stages {', '.join(map(str, here.stages))}" if here.stages else "all devices"
            raise RhinoError(
                f"{trace.name} would take {here.name} on {where}, but {there.name} is on "
                f"stages {', '.join(map(str, there.stages))}, which are other processes' here",
                "give batches of one size; what is no step of its own, compute in the step and return it",
            )
