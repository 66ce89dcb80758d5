"""What a user may ask of the joint search.

Owns the options, and which of them cannot be meant. Knows no programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from rhino.deadline import NEVER, Deadline
from rhino.errors import RhinoError

# Tried for each pipeline, the simplest first: of two as fast the first is taken.
SCHEDULES = {"O1": ("1f1b", "eager-1f1b"), "O2": ("1f1b", "eager-1f1b", "kfkb", "zero-bubble")}


@dataclass(frozen=True)
class JointOptions:
    """What to search. 0, "" and None leave a choice to the search.

    Attributes:
      memory_limit: bytes per device; None is nine tenths of the device's.
      mesh, axes: of one replica of a stage, and the names of its axes; one each for all widths that stages have.
      fewer: whether the most micro-batches that divide the batch will do, up to those asked for. Stages are cut as for
        the latter, so that a smaller batch finds the stages of a whole one.
      deadline: when the best plan so far is written, and when a search gives up that found none.
      cut_s: seconds that cutting the step once took, by which those of writing are told.
    """

    level: str = "O1"
    memory_limit: int | None = None
    mesh: tuple[tuple[int, ...], ...] = ()
    axes: tuple[tuple[str, ...], ...] = ()
    stages: int = 0
    microbatches: int = 0
    fewer: bool = False
    schedule: str = ""
    deadline: Deadline = NEVER
    cut_s: float = 0.0

    def mesh_of(self, width: int) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
        """The mesh asked for of stages of a width, None where it is open, and the names of its axes."""
        at = next((k for k, sizes in enumerate(self.mesh) if prod(sizes) == width), -1)
        return (self.mesh[at], self.axes[at] if self.axes else ()) if at >= 0 else (None, ())


def check_options(options: JointOptions) -> None:
    """Raises RhinoError at an option that no pipeline could have."""
    for name in ("stages", "microbatches", "memory_limit"):
        given = getattr(options, name)
        if given is not None and given < 0:
            raise RhinoError(
                f"{name.replace('_', '-')} {given} is negative", "give a positive number, or leave it to the search"
            )
    known = SCHEDULES["O2"]
    if options.schedule and options.schedule not in ("gpipe", *known):
        message = (
            f"schedule '{options.schedule}' is not among those of pipelines whose stages have devices of their own"
        )
        raise RhinoError(message, f"give gpipe, {', '.join(known)}, or leave it to the search")
