"""Times by the textbook: one (alpha, beta) per mesh axis, as tables of published plans have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod

from rhino.errors import RhinoError
from rhino.machine.collectives import AffineModel, CommModel, Line, envelope, ring_bytes
from rhino.machine.roofline import HeavyTimes
from rhino.program import Graph
from rhino.sharding.time_model import TimeModel
from rhino.xla import BackEnd


class AlphaBeta(AffineModel):
    """The textbook convention, one (alpha, beta) per mesh axis.

    AR = alpha + 2 beta (n-1)/n V; AG = RS = alpha + beta (n-1)/n V; A2A = alpha + beta (n-1)/n^2 V; a permute
    alpha + beta V. Over several axes: the best of one ring (the worst alpha and beta among them) and axis after
    axis, each on what the one before left. Units are the caller's.
    """

    __slots__ = ("alpha", "beta")

    def __init__(
        self, mesh_sizes: Sequence[int], alpha: Sequence[float], beta: Sequence[float], reduce_scatter: bool = True
    ) -> None:
        super().__init__(mesh_sizes, reduce_scatter)
        if not len(self.sizes) == len(alpha) == len(beta):
            raise RhinoError(
                f"{len(self.sizes)} mesh sizes, {len(alpha)} alphas and {len(beta)} betas", "give one of each per axis"
            )
        self.alpha, self.beta = tuple(alpha), tuple(beta)

    def _derive(self, kind: str, axes: tuple[int, ...]) -> tuple[Line, ...]:
        n = prod(self.sizes[axis] for axis in axes)
        beta = max(self.beta[axis] for axis in axes)
        lines = [(max(self.alpha[axis] for axis in axes), beta * ring_bytes(kind, n, 1))]
        if kind != "collective-permute" and len(axes) > 1:
            lines += [self._in_turn(kind, order) for order in permutations(axes)]
        return envelope(lines)

    def _in_turn(self, kind: str, order: tuple[int, ...]) -> Line:
        """Axis after axis: RS.. AR AG.. for an all-reduce; an all-to-all keeps its local data in every turn."""
        seconds, slope, share = 0.0, 0.0, 1.0
        total = prod(self.sizes[axis] for axis in order)
        for turn, axis in enumerate(order):
            n = self.sizes[axis]
            # A phase's full tensor: n shards of 1/total each in an all-to-all, what earlier axes left otherwise.
            share_here = n / total if kind == "all-to-all" else share
            slope += self.beta[axis] * ring_bytes(kind, n, share_here)
            twice = kind == "all-reduce" and turn < len(order) - 1
            seconds += self.alpha[axis] * (2 if twice else 1)
            share /= n
        return seconds, slope


@dataclass(frozen=True, slots=True)
class Textbook(TimeModel):
    """Collectives of a mesh by `links`, ops by `work`; nothing overlaps or is combined, memory is free."""

    links: Callable[[tuple[int, ...]], CommModel]
    work: Callable[[Graph], Sequence[float]]

    @property
    def back_end(self) -> BackEnd:
        return replace(TimeModel(self.cluster).back_end, sums_merge=True, sums_leave_loops=True, wire_widened=False)

    @property
    def copying(self) -> tuple[float, float]:
        return 0.0, 0.0

    def batch_byte_s(self, graph: Graph, perfect_s: float) -> float:
        return 0.0

    @property
    def windows(self) -> tuple[float, float, float]:
        return 0.0, 0.0, 0.0

    @property
    def starts_shared(self) -> bool:
        return False

    def seconds(self, graph: Graph) -> Sequence[float]:
        return self.work(graph)

    def launches(self, graph: Graph) -> Sequence[float]:
        return [0.0] * len(graph.ops)

    def heavy(self, graph: Graph) -> Mapping[int, HeavyTimes]:
        return {}

    def comm(self, sizes: tuple[int, ...]) -> CommModel:
        return self.links(sizes)
