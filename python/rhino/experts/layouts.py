"""From a rule's choices to pins: axes per dimension for every argument, which the search then completes.

Owns how choices are combined and checked: sizes divide, optimizer state follows its parameter, arguments that the
search keeps in one layout agree. Knows no cluster and no particular expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from rhino.experts.facts import ProgramFacts, ProgramLeaf
from rhino.program.data import Dims

Mesh = tuple[tuple[str, int], ...]


class NotApplicable(Exception):
    """An expert has no plan for a program on a cluster; the text says why."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One plan of an expert, as far as its rule goes.

    Attributes:
      variant: what tells it from the expert's other plans, "data=2 model=8".
      mesh: (axis, size) pairs, outermost first.
      pins: axes per dimension by value, arguments mostly; the search lays out everything else.
    """

    variant: str
    mesh: Mesh
    pins: Mapping[int, Dims]


@dataclass
class LayoutDraft:
    """The choices made so far on one mesh: for each argument the axes of each dimension, major first."""

    facts: ProgramFacts
    mesh: Mesh
    chosen: dict[int, list[list[str]]] = field(default_factory=dict)
    inner: dict[int, Dims] = field(default_factory=dict)

    def size(self, axes: Iterable[str]) -> int:
        """The number of parts that some axes make."""
        sizes = dict(self.mesh)
        return prod(sizes[axis] for axis in axes)

    def of(self, leaf: ProgramLeaf) -> list[list[str]]:
        """The axes of each dimension of an argument; to be changed by `split` only."""
        return self.chosen.setdefault(leaf.index, [[] for _ in leaf.shape])

    def can(self, leaf: ProgramLeaf, dim: int, axes: Sequence[str]) -> bool:
        """Whether a dimension can be split over further axes: it divides, and nothing uses the axes yet."""
        dims = self.of(leaf)
        free = not any(axis in used for axis in axes for used in dims)
        return free and dim not in leaf.stacked and self.facts.parts(leaf.value, dim, self.size([*dims[dim], *axes]))

    def split(self, leaf: ProgramLeaf, dim: int, axes: Sequence[str]) -> bool:
        """Splits a dimension over further axes, the minor ones, if it can be; says whether it was."""
        able = bool(axes) and self.can(leaf, dim, axes)
        if able:
            self.of(leaf)[dim].extend(axes)
        return able

    def split_largest(self, leaf: ProgramLeaf, axes: Sequence[str]) -> bool:
        """Splits the largest dimension that can be, as ZeRO does; whole dimensions go before those that are not."""
        dims = self.of(leaf)
        order = sorted(range(len(leaf.shape)), key=lambda d: (bool(dims[d]), -leaf.shape[d], d))
        return any(self.split(leaf, d, axes) for d in order)

    def split_batch(self, axes: Sequence[str]) -> None:
        """Splits the leading dimension of the batch.

        Raises:
          NotApplicable: there is no batch, or its size does not divide.
        """
        parts = self.size(axes)
        if not self.facts.batch:
            raise NotApplicable("no argument is a batch")
        for leaf in self.facts.batch:
            if not self.split(leaf, 0, axes) and parts > 1:
                raise NotApplicable(f"a batch of {leaf.shape[0]} cannot be split {parts} ways")

    def follow(self) -> None:
        """Lays optimizer state out like the parameter it belongs to."""
        for leaf in self.facts.state:
            owner = self.facts.leaves[leaf.owner] if leaf.owner >= 0 else None
            if owner is not None and owner.shape == leaf.shape:
                self.chosen[leaf.index] = [list(axes) for axes in self.of(owner)]

    def proposal(self, variant: str = "") -> Proposal:
        """The pins: every argument, whole where nothing was chosen."""
        pins: dict[int, Dims] = {}
        for leaf in self.facts.leaves:
            if leaf.shape and self.facts.problem.node_of[leaf.value] >= 0:
                pins[leaf.value] = tuple(tuple(axes) for axes in self.of(leaf))
        pins.update(self.inner)
        text = variant or " ".join(f"{axis}={size}" for axis, size in self.mesh)
        return Proposal(text, self.mesh, settle(self.facts, pins))


def settle(facts: ProgramFacts, pins: Mapping[int, Dims]) -> dict[int, Dims]:
    """Pins under which values that the search keeps in one layout agree: the largest one's choice goes for all.

    Running statistics, for one, are combined element by element with the scale of their normalisation.
    """
    problem, values = facts.problem, facts.graph.values
    order = sorted(pins, key=lambda v: (-values[v].nbytes, v))
    chosen: dict[int, dict[int, tuple[str, ...]]] = {}
    settled: dict[int, Dims] = {}
    for v in order:
        classes = problem.classes[v]
        axes = chosen.get(problem.node_of[v])
        if axes is None:
            axes = {c: names for c, names in zip(classes, pins[v], strict=True) if names}
            chosen[problem.node_of[v]] = axes
            settled[v] = pins[v]
        else:
            settled[v] = tuple(axes.get(c, ()) if c >= 0 else () for c in classes)
    return {v: settled[v] for v in pins}
