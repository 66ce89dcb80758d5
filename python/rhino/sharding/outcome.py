"""What the search of one program has found so far, mesh by mesh, and how plans are ranked.

Owns the ranking, the reasons why meshes lost, and progress over several rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from math import inf

from rhino.program.alternative import Alternative
from rhino.sharding.costs import States
from rhino.sharding.descent import Descent, Setting
from rhino.sharding.evaluate import Prediction
from rhino.sharding.levels import LEVELS
from rhino.sharding.meshes import Mesh, mesh_name, named

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class MeshCandidate:
    """One mesh: what its search needs, the best plan on it so far, and one known to be within the memory limit."""

    setting: Setting
    best: Descent
    known: Sequence[States] | None = None

    @property
    def mesh(self) -> Mesh:
        return named(self.setting.costs.sizes, self.setting.costs.names)

    @property
    def name(self) -> str:
        """Such as "mesh 2x4"."""
        return f"mesh {mesh_name(self.mesh)}"


@dataclass(slots=True)
class Outcome:
    """What the search has found so far, by mesh: plans within the limit, why others lost, plans without the limit.

    `same` is the level's.
    """

    same: float = 0.0
    ranked: dict[str, tuple[Prediction, MeshCandidate]] = field(default_factory=dict)
    losers: dict[str, Alternative] = field(default_factory=dict)
    failed: dict[str, MeshCandidate] = field(default_factory=dict)
    met: dict[Mesh, MeshCandidate] = field(default_factory=dict)

    @property
    def best(self) -> tuple[Prediction, MeshCandidate]:
        """Of plans as fast as the fastest one: on the mesh with the fewest axes, and of those the smallest."""
        fast = [e for e in self.ranked.values() if e[0].step_time_s <= self.least_s * (1 + self.same)]
        return min(
            fast, key=lambda e: (len(e[1].setting.costs.sizes), e[0].memory.peak_bytes, e[0].step_time_s, e[1].name)
        )

    def lost(self, perfect_s: float) -> float:
        """Of the best plan's step time, what is more than computing divided perfectly takes."""
        step_s = self.best[0].step_time_s
        return 1 - min(1.0, perfect_s / step_s) if step_s else 0.0

    @property
    def least_s(self) -> float:
        return min((p.step_time_s for p, _ in self.ranked.values()), default=inf)

    def rank(self, predicted: Prediction, candidate: MeshCandidate) -> None:
        """Keeps a plan within the limit if it is the best on its mesh."""
        name = candidate.name
        if name not in self.ranked or predicted.step_time_s < self.ranked[name][0].step_time_s:
            self.ranked[name] = (predicted, candidate)

    def alternatives(self) -> tuple[Alternative, ...]:
        """Every mesh but the best plan's, the fastest first."""
        predicted, chosen = self.best
        found = [a for name, a in self.losers.items() if name not in self.ranked]
        for other, candidate in self.ranked.values():
            if candidate is not chosen:
                found.append(as_alternative(candidate.name, other, predicted))
        return tuple(sorted(found, key=lambda a: a.rank))

    def refined(self) -> Iterator[tuple[Mesh, list[States]]]:
        """The meshes that split an axis of the best one of two axes, each with that plan as it is on them."""
        best = self._best_of(2)
        if best is None:
            return
        sizes = best.setting.costs.sizes
        for axis, size in enumerate(sizes):
            for outer in range(2, size):
                if size % outer == 0:
                    shape = (*sizes[:axis], outer, size // outer, *sizes[axis + 1 :])
                    yield named(shape), [(*s[: axis + 1], *s[axis:]) for s in best.best.states]

    def permuted(self, per_host: int) -> Iterator[tuple[Mesh, list[States]]]:
        """The best mesh of three axes in other orders, the inner one in a host, each with that plan as it is there."""
        best = self._best_of(3)
        if best is None:
            return
        sizes = best.setting.costs.sizes
        for order in permutations(range(3)):
            shape = tuple(sizes[a] for a in order)
            if named(shape) not in self.met and shape[-1] <= per_host:
                yield named(shape), [tuple(s[a] for a in order) for s in best.best.states]

    def wider(self) -> Mesh | None:
        """The best mesh of two axes with more devices on its inner one; None if there is none, or it was tried."""
        best = self._best_of(2)
        if best is None:
            return None
        outer, inner = best.setting.costs.sizes
        times = next((k for k in range(2, outer) if outer % k == 0), outer)
        mesh = named((outer // times, inner * times))
        return mesh if times < outer and mesh not in self.met else None

    def _best_of(self, axes: int) -> MeshCandidate | None:
        """The best plan of so many axes."""
        found = [e for e in self.ranked.values() if len(e[1].setting.costs.sizes) == axes]
        return min(found, key=lambda e: (e[0].step_time_s, e[1].name))[1] if found else None

    def gap(self, perfect_s: float) -> float:
        """How far above what no plan on the meshes tried can beat the best plan is, relatively.

        That is what was proved for all of them, or computing divided perfectly.
        """
        step_s = self.best[0].step_time_s
        bounds = [c.best.bound for _, c in self.ranked.values()]
        bound = max(perfect_s, min(bounds)) if len(bounds) == len(self.met) else perfect_s
        return max(0.0, step_s / bound - 1) if bound > 0 else 0.0


@dataclass(slots=True)
class Steps:
    """Progress over several rounds, each of which adds its steps to the total."""

    progress: Progress
    before: int = 0
    total: int = 0

    def begin(self, count: int) -> None:
        self.before, self.total = self.total, self.total + count

    def tell(self, done: int, label: str) -> None:
        self.progress(self.before + done, self.total, label)


def as_alternative(name: str, lost: Prediction, best: Prediction) -> Alternative:
    """A plan that lost to another by its time."""
    share = lost.step_time_s / best.step_time_s - 1 if best.step_time_s else 0.0
    why = f"{share:.1%} slower" if share >= LEVELS["O1"].same else "as fast"
    return Alternative(name, why, lost.step_time_s, lost.memory.peak_bytes)
