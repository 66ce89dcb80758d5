"""A plan for a call beside a pipeline that is there: the same stages, so that state they share stays where it is.

Owns what is asked of the search, and in which order. What a plan without stages leaves to others is in `api_pins`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rhino.errors import RhinoError
from rhino.plan import Plan
from rhino.plan_module import Request


def plan_beside(other: Plan, request: Request, search: Callable[[Request], Plan], own: bool) -> Plan:
    """The plan of another program over the state of a pipeline.

    Stages, the mesh of a replica and the schedule are the pipeline's, and its micro-batches where they divide the
    batch, else the most that do. What the new plan keeps elsewhere all the same is moved by the call.

    Args:
      other: the pipeline's plan.
      request: what the user asked for.
      search: plans the program; called again with less that is given if that is refused.
      own: whether it is the same function for other shapes, which is then a pipeline, too. Another function that cannot
        be cut into micro-batches, such as a norm of the parameters, becomes one program over all devices.

    Raises:
      RhinoError: no plan is possible; of the same function, as the pipeline that it cannot be.
    """
    mesh = "" if other.meshes else "x".join(str(size) for _, size in other.mesh)
    count, schedule = other.microbatches, other.schedule
    same = replace(request, stages=other.stages, mesh=mesh, microbatches=count, fewer=True, schedule=schedule)
    attempts = (same, replace(same, mesh=""))
    refused: RhinoError | None = None
    for attempt in dict.fromkeys(attempts):
        try:
            return search(attempt)
        except RhinoError as error:
            refused = error
    assert refused is not None
    if own:
        raise refused
    try:
        return search(replace(request, stages=1, mesh="", microbatches=0, schedule=""))
    except RhinoError as error:
        raise error from refused
