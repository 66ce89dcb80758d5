"""What the joint search is given and what it answers: programs by number of slices, a pipeline planned in full.

Owns the types. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rhino.errors import RhinoError
from rhino.pipeline.cut.plan import StagePlan
from rhino.pipeline.schedule import Schedule, Simulation
from rhino.pipeline.search.candidates import Shape
from rhino.pipeline.search.pipeline import Pipeline
from rhino.pipeline.search.sharded import Layouts, Prepared, Sharded
from rhino.sharding.solution import Alternative


class Programs(Protocol):
    """The step cut into any number of slices."""

    @property
    def batch(self) -> int:
        """Examples in a step."""

    @property
    def example(self) -> Prepared:
        """The step cut into some number of slices."""

    def prepared(self, slices: int) -> Prepared | None:
        """The step as a loop over so many slices; None if it cannot be cut so."""

    def refusal(self, slices: int) -> RhinoError | None:
        """Why it cannot be cut so."""


@dataclass(frozen=True)
class Candidate:
    """A pipeline planned in full."""

    shape: Shape
    prepared: Prepared
    layouts: Layouts
    stages: StagePlan
    pipeline: Pipeline
    schedule: Schedule
    simulation: Simulation
    peak_bytes: int

    def layout_of(self, stage: int) -> Sharded:
        """The layout that a stage runs its part of."""
        return self.layouts[self.shape.widths[stage]]

    @property
    def step_time_s(self) -> float:
        return self.simulation.step_time_s

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.shape.name}, {self.schedule.name}"


@dataclass(frozen=True)
class JointSolution:
    """The best pipeline, why others lost, and how the search went. `bound_s` is below every pipeline tried."""

    best: Candidate
    alternatives: tuple[Alternative, ...]
    candidates: int
    bound_s: float
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Relative distance of the best pipeline to the bound."""
        return max(0.0, 1 - self.bound_s / self.best.step_time_s) if self.best.step_time_s else 0.0
