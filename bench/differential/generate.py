"""Random StableHLO programs: a hypothesis strategy, and programs of a seed.

Owns how often each kind of operation is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from bench.differential import ops_algebra, ops_elementwise, ops_indexed, ops_regions, ops_shapes, ops_sums
from bench.differential.gen import Gen, Unsuitable
from bench.differential.program import Program

Draws = Callable[[Gen], None]


def _grow(g: Gen, count: int) -> None:
    for _ in range(count):
        _append(g)


KINDS: dict[str, tuple[Draws, ...]] = {
    "elementwise": ops_elementwise.ALL,
    "shapes": ops_shapes.ALL,
    "sums": ops_sums.ALL,
    "indexed": ops_indexed.ALL,
    "algebra": ops_algebra.ALL,
    "regions": tuple(partial(kind, grow=_grow) for kind in ops_regions.ALL),
}
_OFTEN = (*["elementwise"] * 4, *["shapes"] * 4, *["sums"] * 5, *["indexed"] * 2, "algebra", "regions")


def _append(g: Gen) -> None:
    """One operation more, with what it needs; nothing where what was drawn does not suit."""
    before = len(g.ops), len(g.pool)
    try:
        g.one(KINDS[g.one(_OFTEN)])(g)
    except Unsuitable:
        # Arguments that were made stay: they are in the pools of enclosing regions.
        known = set(g.arguments)
        del g.ops[before[0] :]
        g.pool[before[1] :] = [v for v in g.pool[before[1] :] if v in known]


@st.composite
def programs(draw: Any, least: int = 1, most: int = 12) -> Program:
    """A program of some operations on some arguments."""
    g = Gen(draw)
    _grow(g, g.whole(least, most))
    if not g.ops:
        g.value()
        ops_elementwise.barrier(g)
    return g.program(g.whole(0, 2**31 - 1))


def of_seed(number: int, count: int, least: int = 1, most: int = 12) -> list[Program]:
    """The same `count` programs for the same number, with the same version of hypothesis."""
    found: list[Program] = []

    @seed(number)
    @settings(
        max_examples=count,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(least, most))
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return found
