"""State that is pinned to stages: which stages that leaves the ops of the forward pass.

Owns the op that keeps each pinned argument on its stage, and the message where pins contradict each other. What units
and cuts make of it is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rhino.errors import NotPipelined
from rhino.pipeline.cut.anchors import Readers, anchor, owners
from rhino.pipeline.cut.coarsen import Range
from rhino.pipeline.cut.phases import Phases
from rhino.pipeline.cut.problem import pinned_ranges
from rhino.pipeline.cut.step import LoopForm


def item_ranges(
    step: LoopForm, phases: Phases, edges: Mapping[int, Sequence[int]], stages: int
) -> dict[int, Range] | None:
    """By forward item the first and the last stage that it can be on; None where nothing is pinned.

    A parameter is on the stage that accumulates its gradient, with the op that is mirrored there; one without gradient
    is where some op reads it.

    Args:
      edges: for each item, the items that read its results.

    Raises:
      NotPipelined: pins contradict each other, or are to stages that there are not.
    """
    for k, stage in step.pins.items():
        if stage >= stages:
            raise NotPipelined(
                f"{step.graph.arguments[k].name} is pinned to stage {stage}, and there are {stages}",
                f"plan {stage + 1} stages or more",
            )
    return _Ranges(step, phases, edges, stages).run() if step.pins else None


def check_owners(step: LoopForm, owner: Mapping[int, int], ranges: Sequence[Range]) -> None:
    """Raise NotPipelined if a pinned parameter's gradient would be accumulated on another stage.

    Args:
      owner: by index of a parameter, its unit.
      ranges: by unit, the stages that pins leave it.
    """
    for k, stage in step.pins.items():
        if k in step.gradients and k in owner and ranges[owner[k]] != (stage, stage):
            first, last = ranges[owner[k]]
            there = f"stage {first}" if first == last else f"stages {first} to {last}"
            raise NotPipelined(
                f"{step.graph.arguments[k].name} is on stage {stage}, and its gradient is accumulated with what is "
                f"pinned to {there}",
                "plan the step anew, and place the state for that plan",
            )


class _Ranges:
    """Positions are those of the forward items in program order, which is a topological one."""

    def __init__(self, step: LoopForm, phases: Phases, edges: Mapping[int, Sequence[int]], stages: int) -> None:
        self.step, self.phases, self.stages = step, phases, stages
        self.position = {i: n for n, i in enumerate(phases.forward)}
        self.edges = sorted((self.position[i], self.position[j]) for i, found in edges.items() for j in found)
        self.pinned: dict[int, int] = {}  # by position, the argument that pins it
        self.ranges: Sequence[Range] = ()

    def run(self) -> dict[int, Range]:
        step, pins = self.step, self.step.pins
        readers = Readers(step, self.phases, self.position)
        units = {**self.position, **anchor(step, self.phases, self.position, readers)}
        owner = owners(step, self.phases, readers, units)
        several = []
        for k in sorted(pins):
            read = readers.of_parameter.get(k, [])
            if k in step.gradients and k in owner:
                self.pin(owner[k], k)
            elif len(read) == 1 and step.states.get(k, -1) not in owner:
                self.pin(read[0], k)
            elif len(read) > 1 and step.states.get(k, -1) not in owner:
                several.append((k, read))
        self.spread()
        for k, read in several:
            stage = pins[k]
            if all(self.ranges[n] != (stage, stage) for n in read):
                fitting = [n for n in read if self.ranges[n][0] <= stage <= self.ranges[n][1]]
                if fitting:
                    self.pin(fitting[0], k)
                    self.spread()
        return dict(zip(self.phases.forward, self.ranges, strict=True))

    def pin(self, position: int, argument: int) -> None:
        """What keeps an argument where it is. Raises NotPipelined if it keeps one of another stage."""
        other = self.pinned.setdefault(position, argument)
        if self.step.pins[other] != self.step.pins[argument]:
            raise self.clash(argument, other, "one operation keeps both")

    def spread(self) -> None:
        """What pins leave to each position. Raises NotPipelined if that is nothing."""
        stages = [self.step.pins[self.pinned[n]] if n in self.pinned else -1 for n in range(len(self.position))]
        self.ranges = pinned_ranges(stages, self.edges, self.stages)
        for n, (first, last) in enumerate(self.ranges):
            if first > last:
                before, after = self.met(n, first, [(v, u) for u, v in self.edges]), self.met(n, last, self.edges)
                raise self.clash(before, after, "what reads the first comes before what reads the second")

    def met(self, position: int, stage: int, edges: Sequence[tuple[int, int]]) -> int:
        """The first argument pinned to a stage that is met going along edges."""
        after: dict[int, list[int]] = {}
        for u, v in edges:
            after.setdefault(u, []).append(v)
        front = [position]
        seen = {position}
        while True:  # a range has no end that nothing is pinned to
            n = front.pop(0)
            if n in self.pinned and self.step.pins[self.pinned[n]] == stage:
                return self.pinned[n]
            new = [v for v in after.get(n, ()) if v not in seen]
            seen.update(new)
            front += new

    def clash(self, one: int, other: int, why: str) -> NotPipelined:
        """Of two arguments that cannot both stay."""
        names = [f"{self.step.graph.arguments[k].name} on stage {self.step.pins[k]}" for k in (one, other)]
        return NotPipelined(
            f"no stages leave {' and '.join(names)}: {why}",
            "plan the step anew, and place the state for that plan",
        )
