"""What the joint search is given and what it answers: programs by number of parts, a pipeline planned in full.

Owns the types. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rhino.errors import RhinoError
from rhino.pipeline.cut.plan import StagePlan
from rhino.pipeline.schedule import ScheduledStep, Simulation
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.pipeline import Pipeline
from rhino.pipeline.search.sharded import Layouts, Prepared, Sharded
from rhino.program.alternative import Alternative
from rhino.program.data import Graph
from rhino.program.recomputation import Recomputation


class Programs(Protocol):
    """The step cut into any number of parts."""

    @property
    def batch(self) -> int:
        """Examples in a step."""

    @property
    def example(self) -> Prepared:
        """The step cut into some number of parts."""

    def graph(self, parts: int) -> Graph | None:
        """The step as a loop over so many parts; None if it cannot be cut so."""

    def prepared(self, parts: int) -> Prepared | None:
        """The same, read for the search."""

    def is_cut(self, parts: int) -> bool:
        """Whether the step was cut so already."""

    def refusal(self, parts: int) -> RhinoError | None:
        """Why it cannot be cut so."""

    @property
    def again(self) -> Recomputation | None:
        """What was chosen to be computed again; None is what the step computes again."""


@dataclass(frozen=True)
class PipelineCandidate:
    """A pipeline planned in full; `again` is what was chosen to be computed again."""

    shape: Shape
    prepared: Prepared
    layouts: Layouts
    stages: StagePlan
    pipeline: Pipeline
    schedule: ScheduledStep
    simulation: Simulation
    peak_bytes: int
    again: Recomputation | None = None

    def layout_of(self, stage: int) -> Sharded:
        """The layout that a stage runs its part of."""
        return self.layouts[self.shape.stage_widths[stage]]

    @property
    def step_time_s(self) -> float:
        return self.simulation.step_time_s

    @property
    def name(self) -> str:
        """For people."""
        return named(self.shape, self.again, self.schedule.name)


def named(shape: Shape, again: Recomputation | None, schedule: str = "") -> str:
    """A pipeline for people."""
    computing = f", computing again {again.name}" if again else ""
    return f"{shape.name}{f', {schedule}' if schedule else ''}{computing}"


@dataclass(frozen=True)
class JointSolution:
    """The best pipeline, why others lost, and how the search went.

    `bound_s` is below every pipeline tried; `hopes` are by number of stages what the most promising one might take.
    """

    best: PipelineCandidate
    alternatives: tuple[Alternative, ...]
    candidates: int
    bound_s: float
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    hopes: dict[int, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far above the bound the best pipeline is, relatively."""
        return max(0.0, self.best.step_time_s / self.bound_s - 1) if self.bound_s > 0 else 0.0
