"""The answer of the analysis, as plain data: what is computed before the loop, in it and after it, and in which form.

Owns the data model of a plan, and the removal of what nothing needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rhino.microbatch.forms import ESTIMATE, WHOLE, Form, Partial, Split

Ref = tuple[int, Form]


@dataclass(frozen=True, slots=True)
class TakePart:
    """Take the micro-batch's part of a whole value."""

    value: int
    split: Split

    def makes(self) -> tuple[Ref, ...]:
        """The values that exist after it."""
        return ((self.value, self.split),)

    def reads(self) -> tuple[Ref, ...]:
        """The values it needs."""
        return ((self.value, WHOLE),)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Take the micro-batch's part of a sum, times the number of micro-batches, for the sum."""

    value: int
    form: Partial

    def makes(self) -> tuple[Ref, ...]:
        """The values that exist after it."""
        return ((self.value, ESTIMATE),)

    def reads(self) -> tuple[Ref, ...]:
        """The values it needs."""
        return ((self.value, self.form),)


@dataclass(frozen=True, slots=True)
class OpCopy:
    """Compute op `op` from operands of some forms, which gives results of some forms.

    `positions`: which operands and results of an optimization barrier are kept; all, if empty.
    """

    op: int
    operands: tuple[Ref, ...]
    results: tuple[Ref, ...]
    bodies: tuple[CopiedRegion, ...] = ()
    positions: tuple[int, ...] = ()

    def makes(self) -> tuple[Ref, ...]:
        """The values that exist after it."""
        return self.results

    def reads(self) -> tuple[Ref, ...]:
        """The values it needs, those of its bodies included."""
        return (*self.operands, *(ref for body in self.bodies for ref in body.outside()))


Step = OpCopy | TakePart | Scaled


@dataclass(slots=True)
class CopiedRegion:
    """A region of a copy: arguments, steps in order, and what is passed on, each in its form."""

    args: tuple[Ref, ...]
    steps: list[Step]
    yields: tuple[Ref, ...]

    def outside(self) -> tuple[Ref, ...]:
        """What the steps read from outside."""
        made = {*self.args, *(ref for step in self.steps for ref in step.makes())}
        read = dict.fromkeys([*(ref for step in self.steps for ref in step.reads()), *self.yields])
        return tuple(ref for ref in read if ref not in made)


@dataclass(slots=True)
class MicrobatchPlan:
    """A training step as a loop over micro-batches.

    Attributes:
      count: micro-batches. `group`: consecutive examples that stay together.
      loop: what each micro-batch does, in order.
      after: ops of @main that run after the loop, in order.
      barriers: optimization barriers that are cut up: the part outside of the loop, and whether it is after it.
      sums: values to accumulate over micro-batches. `stacks`: results that are collected from them.
      before: ops of @main that run before the loop and are needed.
    """

    count: int
    group: int
    loop: list[Step]
    after: list[int]
    sums: list[tuple[int, Partial]]
    stacks: list[tuple[int, Split]]
    before: list[int] = field(default_factory=list)
    barriers: list[tuple[OpCopy, bool]] = field(default_factory=list)

    @property
    def estimates(self) -> bool:
        """Whether something is estimated: results are then not those of the whole batch."""
        return self.count > 1 and any(isinstance(step, Scaled) for step in walked(self.loop))


def needed(steps: Sequence[Step], wanted: Sequence[Ref], effects: frozenset[int] = frozenset()) -> list[Step]:
    """The steps that make something wanted, in order."""
    want = set(wanted)
    found: list[Step] = []
    for step in reversed(steps):
        effect = isinstance(step, OpCopy) and step.op in effects
        if effect or not want.isdisjoint(step.makes()):
            found.append(step)
            want.update(step.reads())
    return found[::-1]


def walked(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps at any depth."""
    for step in steps:
        yield step
        if isinstance(step, OpCopy):
            for body in step.bodies:
                yield from walked(body.steps)


def copied(steps: Sequence[Step]) -> Iterator[int]:
    """The ops of which there are copies among the steps, at any depth."""
    return (step.op for step in walked(steps) if isinstance(step, OpCopy))
