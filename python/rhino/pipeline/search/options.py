"""What a user may ask of the joint search.

Owns the options, and which of them cannot be meant. Knows no programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from rhino.deadline import NEVER, Deadline
from rhino.errors import RhinoError
from rhino.pipeline.schedule.tasks import ONE_STAGE_PER_GROUP, SCHEDULES

# Tried for each pipeline, the simplest first: of two as fast the first is taken.
ALONE = ("1f1b", "eager-1f1b", "kfkb", "zero-bubble")
# The same where a group of devices runs several stages.
INTERLEAVED = ("interleaved-1f1b", "zero-bubble")


@dataclass(frozen=True)
class JointOptions:
    """What to search. 0, "" and None leave a choice to the search.

    Attributes:
      memory_limit: bytes per device; None is nine tenths of the device's.
      groups: of devices that the stages asked for share; by default as many as stages, but for interleaved ones.
      mesh, axes: of one replica of a stage, and the names of its axes; one each for all widths that stages have.
      deeper: only pipelines of more stages than that.
      fewer: whether the most micro-batches that divide the batch will do, up to those asked for. Stages are cut as for
        the latter, so that a smaller batch finds the stages of a whole one.
      rival_s: the step time of a plan that there is already: once a pipeline was planned, none is looked for that could
        not be faster.
      deadline: when the best plan so far is written, and when a search gives up that found none.
      cut_s: seconds that cutting the step once took, by which those of writing are told.
    """

    level: str = "O1"
    memory_limit: int | None = None
    mesh: tuple[tuple[int, ...], ...] = ()
    axes: tuple[tuple[str, ...], ...] = ()
    stages: int = 0
    groups: int = 0
    microbatches: int = 0
    deeper: int = 0
    fewer: bool = False
    schedule: str = ""
    rival_s: float = inf
    deadline: Deadline = NEVER
    cut_s: float = 0.0

    def mesh_of(self, width: int) -> tuple[tuple[int, ...] | None, tuple[str, ...]]:
        """The mesh asked for of stages of a width, None where it is open, and the names of its axes."""
        at = next((k for k, sizes in enumerate(self.mesh) if prod(sizes) == width), -1)
        return (self.mesh[at], self.axes[at] if self.axes else ()) if at >= 0 else (None, ())

    @property
    def shares(self) -> tuple[int, ...]:
        """Stages of one group that are tried at first; none where those asked for cannot be interleaved."""
        if self.stages and self.groups:
            return (self.stages // self.groups,)
        if self.schedule != "interleaved-1f1b":
            return (1,)
        if not self.stages:
            return (2,)
        # A group alone would be no pipeline.
        return tuple(c for c in range(2, self.stages // 2 + 1) if self.stages % c == 0)

    @property
    def fills(self) -> bool:
        """Whether the schedule asked for fills and drains a pipeline as 1F1B does."""
        return self.schedule in ONE_STAGE_PER_GROUP

    @property
    def more_chunks(self) -> bool:
        """Whether groups may run more stages than are tried at first."""
        return not self.stages and (not self.schedule or self.schedule in INTERLEAVED)

    def schedules(self, chunks: int) -> tuple[str, ...]:
        """What is tried where each group runs so many stages."""
        return (self.schedule,) if self.schedule else ALONE if chunks == 1 else INTERLEAVED


def check_options(options: JointOptions) -> None:
    """Raises RhinoError at an option that no pipeline could have."""
    for name in ("stages", "microbatches", "memory_limit"):
        given = getattr(options, name)
        if given is not None and given < 0:
            raise RhinoError(
                f"{name.replace('_', '-')} {given} is negative", "give a positive number, or leave it to the search"
            )
    if options.schedule and options.schedule not in SCHEDULES:
        raise RhinoError(
            f"schedule '{options.schedule}' is not among those of pipelines",
            f"give {', '.join(SCHEDULES)}, or leave it to the search",
        )
    if options.groups and (not options.stages or options.stages % options.groups):
        raise RhinoError(
            f"{options.stages or 'any number of'} stages cannot be dealt to {options.groups} groups of devices",
            "give a number of stages that the number of groups divides",
        )
