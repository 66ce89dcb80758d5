"""How hard each level searches.

Owns those numbers, and why each is what it is.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass, replace
from math import inf

Effort = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class SearchLevel:
    """One level.

    Attributes:
      effort: how close to its optimum an integer program is brought, up to which size to the optimum itself, and which
        size is too large for several axes at once (see `Setting`).
      finer: the same for meshes of three axes, which start from a good plan: proving every step of theirs took
        O2 three times as long on GPT-3 175 B, and found nothing better.
      promising: by number of axes, how much slower than the best a mesh's plan from one axis at a time may be to be
        improved; to place three axes at once takes minutes and wins little.
      same: plans this close are as fast: the mesh with fewer axes is taken.
      worth: the share of a step that is not computing, divided perfectly, from which a third axis is tried.
      costly: the share from which the best three axes are tried in other orders.
      missed: by how much a plan may be slower than its program said before others are looked for.
      proves: whether a mesh is proved a bound without the memory limit where its fastest plan is over that.
    """

    effort: Effort
    finer: Effort
    promising: tuple[float, float, float]
    same: float
    worth: float
    costly: float
    missed: float
    proves: bool = False

    def promise(self, axes: Sized) -> float:
        """`promising` for a mesh with these axes."""
        return self.promising[min(len(axes), len(self.promising)) - 1]


# From this share of what is lost O1 too places both axes of a mesh at once.
COSTLY = 0.25
# From this share of what is lost a step that memory makes slow is costly: pipelines are looked for, too. Of models that
# were tried GPT 39B on V100s, which loses most of its step, is far faster as a pipeline; of those that lose less than
# this none is by more than 3 %, and GPT 175B on H100s, a quarter, is not at all.
DEAR = 1 / 3
AT_ONCE = (3e-3, 300, 100_000)
_FAST = (3e-3, 300, 20_000)
LEVELS = {
    "O1": SearchLevel(_FAST, _FAST, (1.05, 1.05, 1.0), same=5e-4, worth=0.2, costly=COSTLY, missed=1e-2),
    "O2": SearchLevel(
        (1e-3, 20_000, 250_000),
        (1e-3, 300, 250_000),
        (1.3, 1.3, 1.0),
        same=0.0,
        worth=0.0,
        costly=0.0,
        missed=1e-3,
        proves=True,
    ),
}
# Programs this small are searched without tying repeats at O2: equal decisions may then differ, and any mesh of two
# axes may win.
FEW = 64
LEVEL_OF_FEW = replace(LEVELS["O2"], promising=(inf, inf, 1.0))
