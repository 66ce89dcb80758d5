"""What is known of the forms of a step that were not searched: in how many parts they may fit, and what no plan beats.

Owns the forms of a step and these bounds (docs/design/search.md, "Micro-batches and recomputation").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from rhino.machine.roofline import perfect_s
from rhino.program.data import Graph
from rhino.program.recomputation import LAYERS, Way
from rhino.sharding.planner import FreePlan
from rhino.sharding.time_model import ProgramTimes, TimeModel


@dataclass(frozen=True, slots=True, order=True)
class Form:
    """Into how many parts of the batch a step is cut, and the number of its way to recompute; 0 keeps all.

    What it adds up over the parts are so many local `sums` each.
    """

    parts: int
    way: int = 0
    sums: int = 1


class StepInParts(Protocol):
    """A step, and the same as loops over parts of its batch and with values computed again."""

    @property
    def fewest(self) -> int:
        """The least number of parts: 1, or what was asked for."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Into how many more parts the batch divides, ascending."""

    @property
    def examples(self) -> int:
        """How many there are to be cut into parts."""

    @property
    def ways(self) -> Sequence[Way]:
        """What can be computed again: the first is the step as it is, and those after the plain one go from least to
        most, those that undo apart.
        """

    @property
    def plain(self) -> int:
        """The way in which nothing is computed again, not even what the step has its backward pass do; 0 if that is
        nothing.
        """

    def way(self, number: int) -> Way:
        """One of them; the first and the plain one are known before the others."""

    def graph(self, parts: int, way: int = 0, sums: int = 1) -> Graph | None:
        """The step in one of its forms; None if it cannot be cut so."""


class FormBounds:
    """By form, the fastest plans if memory were no matter that are known, and what follows of others from these."""

    def __init__(self, programs: StepInParts, step: Graph, whole: Form, plain: Form, model: TimeModel) -> None:
        self.programs, self.step, self.whole, self.plain = programs, step, whole, plain
        self.devices = model.cluster.num_devices
        self.free: dict[Form, FreePlan] = {}
        self.times: dict[Form, ProgramTimes] = {}

    def add(self, form: Form, free: FreePlan, times: ProgramTimes) -> None:
        """What a search of a form begins with."""
        self.free[form], self.times[form] = free, times

    def needed(self, form: Form) -> float:
        """How many parts fit, by what so many take: all but the arguments is divided; twice as many at least."""
        free = self.free[form]
        room = free.limit_bytes - self.held_bytes(free)
        if room <= 0:
            return 2 * form.parts
        share = form.parts * (free.peak_bytes - free.argument_bytes) / room
        return max(ceil(share), 2 * form.parts)

    def first_parts(self, way: int) -> int:
        """In how many parts it may fit: of all but the arguments, it leaves out its part of what is kept.

        Whole segments that are computed again gather and cast for themselves what they need, one after the other: of
        what there is besides, such as parameters that were gathered for both directions, they leave out theirs, too.
        """
        base = self.base(way)
        assert base is not None
        free = self.free[base]
        room = free.limit_bytes - self.held_bytes(free)
        if room <= 0:
            return max(self.free).parts
        kept, left = (self.programs.way(w).told.kept_bytes / self.devices / base.parts for w in (base.way, way))
        besides = max(0.0, free.peak_bytes - free.argument_bytes - kept)
        rest = left + besides * (1 - self._share_again(way))
        return max(base.parts, ceil(base.parts * rest / room))

    def _share_again(self, way: int) -> float:
        """The share of the step's segments that a way computes again as a whole; a loop holds one layer's anyway."""
        told = self.programs.way(way).told
        if told.policy != LAYERS or told.loops or not told.segments:
            return 0.0
        alike = [way.told.segments for way in self.programs.ways if way.told.policy == LAYERS]
        return told.segments / max(alike)

    def held_bytes(self, free: FreePlan) -> float:
        """What arguments take; where they have to be divided for that, divided by all devices."""
        if not free.tight:
            return free.argument_bytes
        kept = (a.value for a in self.step.arguments if a.value not in self.step.hosted)
        return sum(self.step.values[v].nbytes for v in kept) / self.devices

    def base(self, way: int) -> Form | None:
        """What a way adds to: the step as it is, or without what it computes again itself; None if that is left out."""
        for base in (self.whole, self.plain):
            if way == base.way or self.programs.way(way).told.undoes == (base.way > 0):
                return base
        return None

    def least_s(self, form: Form) -> float:
        """Seconds that no plan of a form is faster than, by those with fewer parts and by what it computes again.

        Beside that communication can be hidden that is not hidden yet, but never more than there is.
        """
        bounds = [0.0]
        again_s, base = self.again_s(form.way), self.base(form.way)
        assert base is not None
        for other in self.free:
            if other.parts <= form.parts and other.way in (base.way, form.way) and other.sums in (1, form.sums):
                more_s = again_s if other.way != form.way else 0.0
                beside = 1 - self.times[base].hiding.most if more_s > 0 else 1.0
                bounds.append(self.computing_s(other) + more_s)
                # With local sums a plan may send less.
                if other.sums == form.sums:
                    bounds.append(self.free[other].step_time_s + beside * more_s)
        return max(bounds)

    def again_s(self, way: int) -> float:
        """Seconds of what is done again, divided perfectly, without what is spared; less than 0 where that is more."""
        base = self.base(way)
        assert base is not None
        if way == base.way:
            return 0.0
        seconds, found = self.times[base].seconds, self.programs.way(way)
        more_s = sum(seconds[op] for op in found.again) - sum(seconds[op] for op in found.spared)
        return more_s / self.devices

    def computing_s(self, form: Form) -> float:
        """Seconds of a form's computing, divided perfectly."""
        times = self.times[form]
        return perfect_s(times.seconds, times.launches, self.devices)

    @property
    def most_sums(self) -> float:
        """How many local sums memory holds, each as large as all parameters are in float32."""
        elements = sum(self.step.values[a.value].elements for a in self.step.arguments if a.role == "param")
        return self.free[self.whole].limit_bytes * self.devices / max(1, 4 * elements)

    def lost(self, step_s: float, form: Form) -> float:
        """Of a step of so many seconds, the share that is not this form's computing, divided perfectly."""
        return 1 - min(1.0, self.computing_s(form) / step_s) if step_s else 0.0
