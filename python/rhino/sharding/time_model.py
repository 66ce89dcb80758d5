"""What time a search of layouts goes by: the one place that says how long computing and communication take.

Owns the choice of models for a cluster. The models themselves are in `rhino.machine` and `rhino.xla`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rhino.machine import Cluster
from rhino.machine.collectives import CommModel, RingModel
from rhino.machine.host import starting_seconds
from rhino.machine.roofline import (
    HeavyTimes,
    heavy_times,
    launch_s,
    launch_seconds,
    memory_bytes_s,
    op_seconds,
    perfect_s,
)
from rhino.program.data import Graph
from rhino.sharding.carved import carving_seconds
from rhino.sharding.combining import Combined, combinable, made_together
from rhino.sharding.filled import Filled, filled
from rhino.sharding.hiding import Hiding, hiding
from rhino.sharding.interrupted import uninterrupted
from rhino.sharding.landing import apart_seconds
from rhino.sharding.manual import Inside, insides
from rhino.sharding.outermost import Turning, turning
from rhino.sharding.overlap import WINDOW, WINDOW_IN_LOOPS, beside_transfers, hideable_transfers, stored_transfers
from rhino.sharding.problem import Problem
from rhino.sharding.symmetry import Quotient
from rhino.xla import BackEnd, back_end

# PCIe 4.0 x16 as common copy benchmarks find it, and the share of a step that a batch is worth which takes less.
_HOST_BYTES_S, _WORTH = 2.5e10, 5e-3


@dataclass(frozen=True, slots=True)
class TimeModel:
    """Seconds on a cluster: the roofline, rings over its links, and what XLA does for its devices.

    A search is given another one to go by other times; nothing else in it knows a second.
    """

    cluster: Cluster

    @property
    def back_end(self) -> BackEnd:
        """What XLA does with collectives on these devices."""
        return back_end(self.cluster.device.xla_target)

    @property
    def copying(self) -> tuple[float, float]:
        """Seconds in which a device reads or writes a byte of its memory, and of a kernel's start."""
        return 1 / memory_bytes_s(self.cluster), launch_s(self.cluster)

    @property
    def windows(self) -> tuple[float, float, float]:
        """Per window (`rhino.sharding.hiding`), the share of its computing that collectives can run beside."""
        return WINDOW, WINDOW_IN_LOOPS, WINDOW_IN_LOOPS

    @property
    def starts_shared(self) -> bool:
        """Whether collectives that XLA combines cost one start (`rhino.sharding.combining`), or each its own."""
        return self.back_end.starts_shared  # XLA: starts-shared

    def batch_byte_s(self, graph: Graph, perfect_s: float) -> float:
        """Seconds that a byte of the batch counts for on a device that has more of it than an equal part.

        Hosts bring the next batch while a step runs: where all of it takes no longer than the step, which is at least
        `perfect_s`, it is worth little, as of plans about as fast one that splits it is what a user expects.
        """
        whole_s = sum(graph.values[a.value].nbytes for a in graph.arguments if a.role == "batch") / _HOST_BYTES_S
        return min(1.0, _WORTH * perfect_s / whole_s if 0 < whole_s < perfect_s else 1.0) / _HOST_BYTES_S

    def seconds(self, graph: Graph) -> Sequence[float]:
        """Per op, its undivided compute seconds in a step, launches of what is no dot, convolution or kernel apart."""
        return op_seconds(graph, self.cluster)

    def launches(self, graph: Graph) -> Sequence[float]:
        """Per op, what `seconds` leaves out: no plan divides it."""
        return launch_seconds(graph, self.cluster)

    def heavy(self, graph: Graph) -> Mapping[int, HeavyTimes]:
        """Of dots, convolutions and kernels, by op, what shares of them take."""
        return heavy_times(graph, self.cluster)

    def starting(self, graph: Graph) -> tuple[float, float]:
        """Seconds in which the host starts a step, without collectives, and more for each."""
        return starting_seconds(graph, self.cluster)

    def comm(self, sizes: tuple[int, ...]) -> CommModel:
        """Communication on a mesh of the cluster's devices."""
        return RingModel(self.cluster, sizes)


@dataclass(frozen=True, slots=True)
class ProgramTimes:
    """Times of one program that are the same on every mesh.

    `seconds`, `launches`, `heavy` and `starting` are the model's; the tied transfers `hideable`, and of them those of
    activations, `beside`, are `rhino.sharding.overlap`'s, and `combines` is of `rhino.sharding.combining`; `insides`
    are of manual computations, by op; `apart`, `carving`, `turning`, `hiding` and `filled` are of the modules landing,
    carved, outermost, hiding and filled; `batch_byte_s` is the model's.
    """

    problem: Problem
    quotient: Quotient
    model: TimeModel
    seconds: Sequence[float]
    launches: Sequence[float]
    heavy: Mapping[int, HeavyTimes]
    hideable: frozenset[int]
    beside: frozenset[int]
    combines: Mapping[int, Combined]
    insides: Mapping[int, Inside]
    apart: Mapping[int, float]
    carving: Mapping[int, tuple[float, float]]
    turning: Mapping[int, Turning]
    hiding: Hiding
    starting: tuple[float, float]
    filled: Mapping[int, Sequence[Filled]]
    batch_byte_s: float

    @classmethod
    def of(cls, problem: Problem, quotient: Quotient, model: TimeModel) -> ProgramTimes:
        """What a model says of a program, its classes tied."""
        graph, cluster = problem.graph, model.cluster
        seconds, launches = model.seconds(graph), model.launches(graph)
        beside = beside_transfers(problem, quotient, cluster)
        hideable = hideable_transfers(problem, quotient, cluster) | beside
        stored = stored_transfers(problem, quotient)
        combines = (
            made_together(problem, quotient, stored) | combinable(problem, quotient, stored)
            if model.starts_shared
            else {}
        )
        most = uninterrupted(problem, quotient, combines, stored, model.back_end) if hideable else 0.0
        outside, summing, other = model.windows
        shares = min(outside, most), min(summing, most), min(other, most)
        return cls(
            problem, quotient, model, seconds, launches, model.heavy(graph),
            hideable, beside, combines, insides(graph, cluster), apart_seconds(graph, cluster),
            carving_seconds(problem, quotient, cluster), turning(problem, quotient, stored, cluster),
            hiding(problem, quotient, hideable - beside, shares, seconds),
            model.starting(graph), filled(problem, quotient, seconds, launches),
            model.batch_byte_s(graph, perfect_s(seconds, launches, cluster.num_devices)),
        )  # fmt: skip
