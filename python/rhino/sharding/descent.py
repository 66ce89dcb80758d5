"""All axes of one mesh: each in turn placed optimally given the others, then several at once where that is affordable.

Owns how programs over some axes are combined into a plan over all. Knows of memory only as rows it is given.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from rhino.deadline import NEVER, Deadline
from rhino.sharding.costs import Costs, States
from rhino.sharding.cuts import MemoryRow, impossible, row
from rhino.sharding.milp import Bases
from rhino.sharding.pinning import Open
from rhino.sharding.program import AxisProgram, AxisStates, Solved
from rhino.sharding.recurring import size_of

_MAX_ROUNDS = 6
# What ends sooner than this has not begun, and finds nothing.
_LEAST_S = 0.5
_EXACT = 1e-6
_CLOSE = 0.03
# Rounds after the first seldom win more than this share.
_LATE = 0.05


@dataclass(frozen=True, slots=True)
class Descent:
    """States per class and the objective they reach, in seconds; `bound` is proved below that of any plan on the mesh.

    `fits` is False when the memory rows cannot be met; `peak_bytes` is 0 until memory was looked at.
    """

    states: tuple[States, ...]
    objective: float
    bound: float = 0.0
    peak_bytes: int = 0
    fits: bool = True


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same while one mesh is searched.

    `pinned` are the user's shardings; programs of up to `proved` pairs of states are solved to their optimum, others as
    soon as they are within the share `gap` of it. Two axes of a large model meet in about 60,000 pairs, solved in
    seconds; three in a million: more than `largest` is too many. `spent_s` collects the seconds each program took;
    `known_size` the sizes of programs that were counted: that over all axes is the same for all states, and no smaller
    than one over some. `placed` holds what was found without memory rows; `solved` has answers to programs of any mesh,
    and `bases` where those of a shape were found. A class takes none of the states `banned` for it. Plans slower than
    `cutoff` seconds do not matter. What is complete is not improved after the `deadline`, and programs end with it
    where a plan is there already.
    """

    costs: Costs
    pinned: Mapping[int, Open]
    gap: float = 1e-3
    proved: int = 2000
    largest: int = 250_000
    spent_s: list[float] = field(default_factory=list, compare=False)
    known_size: list[int] = field(default_factory=list, compare=False)
    banned: Mapping[int, frozenset[States]] = field(default_factory=dict)
    cutoff: float = inf
    placed: dict[tuple[States, tuple[States, ...]], AxisStates | None] = field(default_factory=dict, compare=False)
    solved: Solved = field(default_factory=dict, compare=False)
    bases: dict[bytes, Bases] = field(default_factory=dict, compare=False)
    deadline: Deadline = NEVER

    def with_effort(self, gap: float, proved: int, largest: int) -> Setting:
        """The same mesh, searched harder or less hard."""
        return replace(self, gap=gap, proved=proved, largest=largest, placed={})

    def without(self, banned: Mapping[int, States]) -> Setting:
        """The same mesh, with some more states that their classes may not take."""
        more = {k: self.banned.get(k, frozenset()) | {states} for k, states in banned.items()}
        return replace(self, banned={**self.banned, **more}, known_size=[], placed={})

    @property
    def orders(self) -> list[list[int]]:
        """The axes from the fastest links outwards, and back."""
        axes = list(range(len(self.costs.sizes)))
        # A second order seldom helps three axes: what it would find, two axes of another mesh find as well.
        return [axes[::-1], axes] if len(axes) == 2 else [axes[::-1]]

    def place(self, axes: Sequence[int], states: Sequence[States], cuts: Sequence[MemoryRow]) -> AxisStates | None:
        """The best states on `axes`, the others as they are; None when the memory rows cannot be met."""
        if cuts:
            return self._solve(self._program(axes, states), cuts)
        # Every search under a memory limit starts as the one without did.
        key = tuple(axes), tuple(states)
        if key not in self.placed:
            self.placed[key] = self._solve(self._program(axes, states), ())
        return self.placed[key]

    def place_all(self, start: Descent, cuts: Sequence[MemoryRow]) -> AxisStates | None:
        """The best states on all axes; None also when that program would be too large.

        A program that is not proved is given up where it could only be better than `start` by less than a third of the
        gap.
        """
        if max(self.known_size, default=0) > self.largest:
            return None
        axes = tuple(range(len(self.costs.sizes)))
        size = size_of(self.costs, axes, start.states, self.pinned, self.banned, self.largest)
        if size > self.largest:
            self.known_size[:] = [max(size, *self.known_size)] if self.known_size else [size]
            return None
        program = self._program(axes, start.states)
        worth_s = inf if program.size <= self.proved else start.objective * (1 - self.gap / 3)
        return self._solve(program, cuts, min(self.cutoff, worth_s))

    def _program(self, axes: Sequence[int], states: Sequence[States]) -> AxisProgram:
        program = AxisProgram(self.costs, axes, states, self.pinned, self.banned)
        self.known_size[:] = [max(program.size, *self.known_size)] if self.known_size else [program.size]
        return program

    def _solve(self, program: AxisProgram, cuts: Sequence[MemoryRow], cutoff: float = inf) -> AxisStates | None:
        start = time.perf_counter()
        found = None
        if not any(impossible(program, cut) for cut in cuts):
            program.build()
            for cut in cuts:
                program.limit(*row(program, cut))
            small = program.size <= self.proved
            limit_s = max(_LEAST_S, self.deadline.at_most(inf, found=False))
            found = program.solve(limit_s, _EXACT if small else self.gap, small, cutoff, self.solved, self.bases)
        self.spent_s.append(time.perf_counter() - start)
        return found


def _first(given: Open | None, blank: States) -> States:
    """The states of a class before any axis is placed: what is given, else undivided."""
    return blank if given is None else tuple(min(held) if held is not None else 0 for held in given)


def descend(
    setting: Setting,
    order: Sequence[int],
    start: Sequence[States] | None = None,
    cuts: Sequence[MemoryRow] = (),
    cutoff: float = inf,
) -> Descent | None:
    """Places the axes in `order`, then again until the objective stays.

    Args:
      start: states to improve on; all replicated by default.
      cuts: memory rows (see `rhino.sharding.limit`).
      cutoff: seconds above which a plan does not matter: one from `start` that is far from it after a round is left
        as it is.

    Returns: None when a memory row cannot be met on some axis, given those before it.
    """
    costs = setting.costs
    blank: States = (0,) * len(costs.sizes)
    states = list(start) if start else [_first(setting.pinned.get(k), blank) for k in range(len(costs.quotient.counts))]
    best, bound, idle = inf, 0.0, 0
    for turn in range(_MAX_ROUNDS * len(order)):
        # Until every axis is placed once, those that are not yet hold everything replicated.
        later = 1 if start else prod(costs.sizes[axis] for axis in order[turn + 1 :])
        found = setting.place((order[turn % len(order)],), states, [cut.before(later) for cut in cuts])
        if found is None:
            return None
        idle = 0 if found.objective < best * (1 - setting.gap / 3) else idle + 1
        if found.objective < best or turn < len(order):
            states, best, bound = list(found.states), found.objective, found.bound
        if start and turn >= len(order) - 1 and best > cutoff * (1 + _LATE):
            break
        if turn >= len(order) - 1 and setting.deadline.over():
            break
        # An axis that nothing has changed for since it was placed would come out the same.
        if turn >= len(order) - 1 and idle >= len(order) - 1:
            break
    return Descent(tuple(states), best, bound if len(order) == 1 else 0.0)


def jointly(setting: Setting, start: Descent, cuts: Sequence[MemoryRow] = ()) -> Descent:
    """Improves a plan by placing all axes at once, where that is not too many.

    Returns: the better of both plans, with the proved bound if all axes were placed; `start` if they were not, or if
      that bound is above the setting's cutoff.
    """
    late = start.objective < inf and setting.deadline.over()
    found = setting.place_all(start, cuts) if len(setting.costs.sizes) > 1 and not late else None
    if found is None:
        return start
    better = found if found.objective < start.objective and found.states else start
    return Descent(better.states, better.objective, found.bound)


def start_from_nothing(setting: Setting, cuts: Sequence[MemoryRow] = ()) -> Descent | None:
    """The better of descents in both orders; None when neither meets the memory rows.

    A plan that takes hardly longer than computing divided perfectly is not worth a second descent.
    """
    costs = setting.costs
    enough_s = costs.least_s * (1 + _CLOSE)
    found: list[Descent] = []
    for order in setting.orders:
        plan = descend(setting, order, cuts=cuts)
        found.extend([plan] if plan is not None else [])
        if plan is not None and (plan.objective <= enough_s or setting.deadline.over()):
            break
    return min(found, key=lambda f: f.objective, default=None)
